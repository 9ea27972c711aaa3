"""A causal language model composed of norms, a placement and an attention normalizer.

It is a Hugging Face model: ``register()`` makes it known to the Auto classes, after which
``save_pretrained``, ``from_pretrained`` and ``generate`` work as for any other.
"""

from __future__ import annotations

from transformers import AutoConfig, AutoModelForCausalLM

from normlens.decoder.config import MODEL_TYPE, DecoderConfig
from normlens.decoder.model import DecoderForCausalLM, DecoderModel
from normlens.decoder.placement import PLACEMENTS, BranchNorms, Placement

__all__ = [
    "MODEL_TYPE",
    "PLACEMENTS",
    "BranchNorms",
    "DecoderConfig",
    "DecoderForCausalLM",
    "DecoderModel",
    "Placement",
    "register",
]


def register() -> None:
    """Make the decoder known to transformers' Auto classes; again does nothing more."""
    AutoConfig.register(MODEL_TYPE, DecoderConfig, exist_ok=True)
    AutoModelForCausalLM.register(DecoderConfig, DecoderForCausalLM, exist_ok=True)
