"""TransformerLens bridges that are in memory already.

1. Copy the structure of the bridge's Hugging Face model; parameters are shared.
2. Put the modules back that TransformerLens replaced by its components. What it added stays
   behind: split projections, hook points, a zero bias on the unembedding.
3. Guard: the result must give the bridge's own log-probabilities.
"""

from __future__ import annotations

import dataclasses
from types import EllipsisType
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from normlens.errors import LoadError
from normlens.models.copying import structural_copy
from normlens.models.openers.memory import open_memory
from normlens.models.openers.request import Opened, Request
from normlens.models.verify import sample_tokens
from normlens.tolerances import for_dtype


def open_bridge(request: Request) -> Opened | None:
    """A ``TransformerBridge``, left as it is; its tokenizer where none is given.

    Raises:
        LoadError: the module is neither a bridge nor a Hugging Face model, the bridge has
            folded or centred its weights, or it computes something else than its model.
        UsageError: there is no tokenizer, and ``tokenizer=None`` was not given.
    """
    bridge = request.source
    if not isinstance(bridge, nn.Module):
        return None
    name = type(bridge).__name__
    if not _is_bridge(bridge):
        raise LoadError(
            f"{name} is neither a Hugging Face model nor a TransformerBridge; open the model that "
            "it wraps"
        )
    original = bridge.original_model
    if not isinstance(original, PreTrainedModel):
        raise LoadError(f"the model of this {name} is no Hugging Face model; open its checkpoint")
    _refuse_processed(bridge)
    model = structural_copy(original)
    _put_back(model)
    _require_agreement(bridge, model)
    opened = open_memory(
        dataclasses.replace(request, source=model, tokenizer=_tokenizer(bridge, request))
    )
    assert opened is not None
    return dataclasses.replace(opened, source=f"memory:{name} of {type(model).__name__}")


def _is_bridge(module: nn.Module) -> bool:
    """By name, since importing TransformerLens takes seconds that other sources need not pay."""
    return any(
        base.__name__ == "TransformerBridge" and base.__module__.startswith("transformer_lens.")
        for base in type(module).__mro__
    )


def _refuse_processed(bridge: Any) -> None:
    # A bridge in compatibility mode may have been told to leave the weights alone.
    if vars(bridge).get("_weights_processed", bridge.compatibility_mode):
        raise LoadError(
            "the bridge has folded or centred its weights in place (compatibility mode), so its "
            "norms have lost the gains they were trained with; open the model or the bridge "
            "before that, or enable the mode with no_processing=True"
        )


def _put_back(parent: nn.Module) -> None:
    from transformer_lens.model_bridge.generalized_components.base import GeneralizedComponent

    for name, child in list(parent.named_children()):
        if isinstance(child, GeneralizedComponent):
            child = child.original_component
            assert child is not None
            setattr(parent, name, child)
        bias = child._buffers.get("bias")
        if isinstance(child, nn.Linear) and bias is not None and not bias.any():
            del child._buffers["bias"]
            child.register_parameter("bias", None)
        _put_back(child)


def _require_agreement(bridge: Any, model: PreTrainedModel) -> None:
    if bridge.training:
        raise LoadError("the bridge is in training mode; call eval() on it to open it")
    ids = sample_tokens(model)
    with torch.no_grad():
        theirs = _log_probs(bridge(ids, return_type="logits"))
        ours = _log_probs(model.eval()(input_ids=ids, use_cache=False).logits)
    difference = (theirs - ours).abs().max().item() / max(1.0, theirs.abs().max().item())
    tolerance = for_dtype("component_view", str(model.dtype).removeprefix("torch."))
    if not difference <= tolerance:
        raise LoadError(
            f"log-probabilities of the bridge and of the {type(model).__name__} inside differ by "
            f"{difference:.3g} of the largest (tolerance {tolerance:.3g}): it has hooks, which "
            "reset_hooks() removes, or recomputes norms by its config; then open the model it was "
            "booted from"
        )


def _log_probs(logits: torch.Tensor) -> torch.Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)


def _tokenizer(bridge: Any, request: Request) -> PreTrainedTokenizerBase | EllipsisType | None:
    own = bridge.tokenizer
    given = isinstance(request.tokenizer, EllipsisType)
    return own if given and isinstance(own, PreTrainedTokenizerBase) else request.tokenizer
