"""Finding the norms of a model by the rules of its family."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn
from transformers import PreTrainedModel

from normlens.errors import LoadError
from normlens.models.detect import is_norm
from normlens.models.families import Family, NormRule
from normlens.models.lens import Layout, Role
from normlens.models.norm_classes import NO_CLASSES, NormClasses


@dataclass(frozen=True)
class Place:
    """Where a norm is, before anything is known of what it computes.

    Attributes:
        layer: block index, None outside blocks.
        role: as the family's rule says.
        path: module path in the model.
        feeds: module paths of the linears that read its output.
        module: the module at ``path``.
        layout: as in :class:`~normlens.models.lens.NormSite`.
        on_stream: likewise.
    """

    layer: int | None
    role: Role
    path: str
    feeds: tuple[str, ...]
    module: nn.Module
    layout: Layout = Layout.BATCH_POS
    on_stream: bool = False

    @property
    def label(self) -> str:
        """As :attr:`normlens.models.lens.NormSite.label`."""
        return self.role.value if self.layer is None else f"{self.layer}.{self.role.value}"


def find_places(
    model: PreTrainedModel, family: Family, classes: NormClasses = NO_CLASSES
) -> tuple[Place, ...]:
    """Every norm the family's rules name, block by block, those outside the blocks last.

    Args:
        model: of that family.
        family: its row.
        classes: a user's own norm classes, which count as norms too.

    Raises:
        LoadError: a module that the rules name is missing, two norms are one module or have
            one label, or the model has a norm that no rule names.
    """
    places = tuple(_places(model, family))
    seen: dict[int, str] = {}
    labels: dict[str, str] = {}
    for place in places:
        if place.label in labels:
            raise LoadError(
                f"{labels[place.label]} and {place.path} are both {place.label}, so tables could "
                "not tell them apart; leave one of them out"
            )
        labels[place.label] = place.path
        if id(place.module) in seen:
            raise LoadError(
                f"{seen[id(place.module)]} and {place.path} are one module object, so their "
                "activations cannot be told apart; give each norm a module of its own"
            )
        seen[id(place.module)] = place.path
    inner = {id(part) for place in places for part in place.module.modules()}
    for path, module in model.named_modules():
        if is_norm(module, classes) and id(module) not in inner:
            raise LoadError(
                f"{type(module).__name__} at {path} is not among the norms of a "
                f"{family.model_type} model; only the standard architecture is supported"
            )
    return places


def _places(model: PreTrainedModel, family: Family) -> Iterator[Place]:
    blocks = _module(model, family.blocks, family)
    assert isinstance(blocks, nn.ModuleList)
    for layer in range(len(blocks)):
        for rule in family.norms:
            yield from _place(model, family, rule, layer, f"{family.blocks}.{layer}.")
    for rule in family.outer_norms:
        yield from _place(model, family, rule)
    if family.unembedding is not None:
        _module(model, family.unembedding, family)
    if family.final_norm is not None:
        feeds = () if family.unembedding is None else (family.unembedding,)
        yield from _place(model, family, NormRule(family.final_norm, Role.FINAL, feeds))


def _place(
    model: PreTrainedModel,
    family: Family,
    rule: NormRule,
    layer: int | None = None,
    prefix: str = "",
) -> Iterator[Place]:
    path = prefix + rule.attribute
    feeds = tuple(prefix + name for name in rule.feeds)
    if rule.optional and not _exists(model, path):
        return
    for name in feeds:
        _module(model, name, family)
    module = _module(model, path, family)
    yield Place(layer, rule.role, path, feeds, module, rule.layout, rule.on_stream)


def _exists(model: PreTrainedModel, path: str) -> bool:
    owner, _, name = path.rpartition(".")
    return dict(model.get_submodule(owner).named_children()).get(name) is not None


def _module(model: PreTrainedModel, path: str, family: Family) -> nn.Module:
    try:
        return model.get_submodule(path)
    except AttributeError as error:
        head = "causal language model" if family.causal else "encoder"
        raise LoadError(
            f"{type(model).__name__} has no module {path}, which a {family.model_type} {head} "
            f"has; open {_class_to_open(family)}, and put torch.nn.Identity where a norm was "
            "removed"
        ) from error


def _class_to_open(family: Family) -> str:
    return family.model_class or "the causal-LM class"
