"""Finding the norms of a model by the rules of its family."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn
from transformers import PreTrainedModel

from normlens.errors import LoadError
from normlens.models.detect import is_norm
from normlens.models.families import Family
from normlens.models.lens import Role


@dataclass(frozen=True)
class Place:
    """Where a norm is, before anything is known of what it computes.

    Attributes:
        layer: block index, None outside blocks.
        role: as the family's rule says.
        path: module path in the model.
        feeds: module paths of the linears that read its output.
        module: the module at ``path``.
    """

    layer: int | None
    role: Role
    path: str
    feeds: tuple[str, ...]
    module: nn.Module

    @property
    def label(self) -> str:
        """As :attr:`normlens.models.lens.NormSite.label`."""
        return self.role.value if self.layer is None else f"{self.layer}.{self.role.value}"


def find_places(model: PreTrainedModel, family: Family) -> tuple[Place, ...]:
    """Every norm the family's rules name, block by block, the final one last.

    Raises:
        LoadError: a module that the rules name is missing, two norms are one module, or
            the model has a norm that no rule names.
    """
    places = tuple(_places(model, family))
    seen: dict[int, str] = {}
    for place in places:
        if id(place.module) in seen:
            raise LoadError(
                f"{seen[id(place.module)]} and {place.path} are one module object, so their "
                "activations cannot be told apart; give each norm a module of its own"
            )
        seen[id(place.module)] = place.path
    for path, module in model.named_modules():
        if is_norm(module) and id(module) not in seen:
            raise LoadError(
                f"{type(module).__name__} at {path} is not among the norms of a "
                f"{family.model_type} model; only the standard architecture is supported"
            )
    return places


def _places(model: PreTrainedModel, family: Family) -> Iterator[Place]:
    blocks = _module(model, family.blocks, family)
    assert isinstance(blocks, nn.ModuleList)
    for layer in range(len(blocks)):
        prefix = f"{family.blocks}.{layer}."
        for norm in family.norms:
            feeds = tuple(prefix + path for path in norm.feeds)
            yield _place(model, family, layer, norm.role, prefix + norm.attribute, feeds)
    yield _place(model, family, None, Role.FINAL, family.final_norm, (family.unembedding,))


def _place(
    model: PreTrainedModel,
    family: Family,
    layer: int | None,
    role: Role,
    path: str,
    feeds: tuple[str, ...],
) -> Place:
    for name in feeds:
        _module(model, name, family)
    return Place(layer, role, path, feeds, _module(model, path, family))


def _module(model: PreTrainedModel, path: str, family: Family) -> nn.Module:
    try:
        return model.get_submodule(path)
    except AttributeError as error:
        raise LoadError(
            f"{type(model).__name__} has no module {path}, which a {family.model_type} causal "
            "language model has; open the causal-LM class, and put torch.nn.Identity where a "
            "norm was removed"
        ) from error
