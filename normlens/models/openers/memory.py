"""Hugging Face models that are in memory already."""

from __future__ import annotations

from types import EllipsisType

from torch import nn
from transformers import PreTrainedModel

from normlens.errors import LoadError, UsageError
from normlens.models.copying import cast, structural_copy
from normlens.models.lens import Lineage
from normlens.models.openers.request import Opened, Request


def open_memory(request: Request) -> Opened | None:
    """A ``PreTrainedModel``, through a structural copy that shares its weights.

    The caller's object keeps its mode, gradients, attention implementation, config and
    modules. Weights changed in place afterwards change in both.

    Raises:
        UsageError: no ``tokenizer=`` was given (None is an answer).
        LoadError: hooks of the caller are attached, which the copy would run.
    """
    model = request.source
    if not isinstance(model, PreTrainedModel):
        return None
    if isinstance(request.tokenizer, EllipsisType):
        raise UsageError(
            "a model in memory comes without a tokenizer; pass tokenizer=..., or tokenizer=None"
        )
    _refuse_hooks(model)
    copy = structural_copy(model)
    _drop_recorders(copy)
    if request.dtype is not None:
        cast(copy, request.dtype)
    return Opened(
        model=copy,
        tokenizer=request.tokenizer,
        name=model.config.name_or_path or type(model).__name__,
        source=f"memory:{type(model).__name__}",
        lineage=Lineage(),
    )


def _refuse_hooks(model: PreTrainedModel) -> None:
    for name, module in model.named_modules():
        for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values()):
            if not _is_recorder(hook):
                raise LoadError(
                    f"a forward hook is attached to {name or 'the model'}; remove it first, "
                    "since every number would depend on it"
                )


def _drop_recorders(model: PreTrainedModel) -> None:
    """Remove transformers' own recorders, which it installs again when it needs them."""
    for module in model.modules():
        _clear_hooks(module)
    model.__dict__.pop("_output_capturing_hooks_installed", None)
    for module in model.modules():
        module.__dict__.pop("_output_capturing_hooks_installed", None)


def _clear_hooks(module: nn.Module) -> None:
    module._forward_hooks.clear()
    module._forward_hooks_with_kwargs.clear()
    module._forward_pre_hooks.clear()
    module._forward_pre_hooks_with_kwargs.clear()


def _is_recorder(hook: object) -> bool:
    """Whether transformers attached it to return hidden states or attentions on request."""
    return getattr(hook, "__module__", "").startswith("transformers.")
