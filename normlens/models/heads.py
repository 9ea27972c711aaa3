"""How many attention heads a model has, and what turns their logits into weights."""

from __future__ import annotations

from transformers import PreTrainedModel

from normlens.models.families import family_of


def head_counts(model: PreTrainedModel) -> tuple[int, int]:
    """``(query heads, key-value heads)`` of every block."""
    heads = int(model.config.num_attention_heads)
    declared = family_of(model).kv_heads
    found = getattr(model.config, declared) if isinstance(declared, str) else declared
    return heads, heads if found is None else int(found)


def attention_rule(model: PreTrainedModel) -> str:
    """What turns attention logits into weights: ``softmax`` in most models."""
    field = family_of(model).attention_rule
    return "softmax" if field is None else str(getattr(model.config, field))
