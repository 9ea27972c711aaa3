"""What the tests of edits share: the conversions of the docs' table, and how logits differ."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from normlens.models import Lens
from normlens.models.edits import Edit, Fold, Rotate, ToCrms, ToRms
from tests.tiny import VOCABULARY

IDS = torch.randint(1, VOCABULARY, (2, 17), generator=torch.Generator().manual_seed(5))

RMS_ALREADY = r"has RMSNorm already"
ON_STREAM = r"stands on the residual stream"
RAW = r"reads the residual stream itself"
BRANCH_GAIN = r"has a gain or a bias per dimension; no linear reads"
NO_READER = r"no linear reads its output"
BECOMES = r"becomes the residual stream"

RMS = ("llama", "mistral", "qwen2", "qwen3", "gemma", "phi3", "granite")
BRANCH_NORMS = ("gemma2", "gemma3", "glm4", "decoder-sandwich-qk")
POST = ("opt-post", "bert", "bert-encoder", "decoder-post", "decoder-hybrid", "decoder-ngpt")
RAW_READERS = ("olmo2", "olmo3")

OF_THE_STREAM = {**dict.fromkeys(RAW_READERS, RAW), **dict.fromkeys(POST, ON_STREAM)}


@dataclass(frozen=True)
class Conversion:
    """Edits, and the architectures that must refuse them, each with its reason."""

    column: str
    edits: tuple[Edit, ...]
    refused: dict[str, str]


CONVERSIONS = (
    Conversion(
        "fold",
        (Fold(),),
        {
            "opt-post": BECOMES,
            "bert-encoder": BECOMES,
            "decoder-post": BECOMES,
            "decoder-ngpt": BECOMES,
            "olmo": "no gain, bias or linear norm",
        },
    ),
    Conversion(
        "to Pre-RMSNorm",
        (ToRms(),),
        {**OF_THE_STREAM, **dict.fromkeys((*RMS, *BRANCH_NORMS), RMS_ALREADY)},
    ),
    Conversion(
        "to Pre-CRMSNorm",
        (ToCrms(),),
        {**OF_THE_STREAM, **dict.fromkeys((*RMS, *BRANCH_NORMS), RMS_ALREADY)},
    ),
    Conversion(
        "rotate",
        (),
        {
            **OF_THE_STREAM,
            **dict.fromkeys(POST, rf"{ON_STREAM}|{BECOMES}"),
            **dict.fromkeys(BRANCH_NORMS, BRANCH_GAIN),
        },
    ),
)


def edits_of(conversion: Conversion, lens: Lens) -> tuple[Edit, ...]:
    """The edits; a rotation is made ready by what the model's norms on the stream need."""
    if conversion.edits:
        return conversion.edits
    centred = any(s.spec.centred for s in lens.sites if s.role.value in ("pre_attn", "final"))
    return (ToRms() if centred else Fold(), Rotate(3))


def logits(lens: Lens, ids: Tensor = IDS) -> Tensor:
    with torch.inference_mode():
        return lens.model(input_ids=ids, use_cache=False)[0].double()


def error(before: Lens, after: Lens) -> float:
    """Largest difference of the logits over the largest logit."""
    old = logits(before)
    return ((logits(after) - old).abs().max() / old.abs().max()).item()


__all__ = ["CONVERSIONS", "IDS", "Conversion", "edits_of", "error", "logits"]
