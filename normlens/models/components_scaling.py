"""Constants that some architectures multiply branches or logits by: rows of data.

    residual = residual + branch_scale * branch
    logits   = softcap * tanh(logit_scale * raw / softcap),  raw = final_norm(r) W_U + b_U

Values are read from the module that multiplies, or from the config where the forward pass
itself reads it there. The guard of the component view compares both equations with the
model, so a constant that no row knows is refused and not overlooked.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter

from torch import Tensor, nn
from transformers import PreTrainedModel


@dataclass(frozen=True)
class ScalingRow:
    """Where one model type keeps its constants, as dotted attributes.

    Attributes:
        model_type: ``config.model_type``.
        branch: of a block: what attention and MLP are multiplied by.
        logit_factor: of the model: what logits are multiplied by.
        logit_divisor: of the model: what logits are divided by.
        softcap: of the model: the bound of the logits; may hold None.
    """

    model_type: str
    branch: str | None = None
    logit_factor: str | None = None
    logit_divisor: str | None = None
    softcap: str | None = None


ROWS = (
    ScalingRow("granite", branch="residual_multiplier", logit_divisor="config.logits_scaling"),
    ScalingRow("cohere", logit_factor="logit_scale"),
    ScalingRow("cohere2", logit_factor="logit_scale"),
    ScalingRow("gemma2", softcap="config.final_logit_softcapping"),
    ScalingRow("gemma3_text", softcap="config.final_logit_softcapping"),
)


@dataclass(frozen=True)
class Scaling:
    """The constants of one model; dimensionless, ``softcap`` in logits.

    Attributes:
        branch: what attention and MLP are multiplied by before they are added.
        logit_scale: what raw logits are multiplied by.
        softcap: bound of the logits after that, None where there is none.
    """

    branch: float = 1.0
    logit_scale: float = 1.0
    softcap: float | None = None

    @property
    def keeps_logits(self) -> bool:
        """Whether raw logits are the model's logits."""
        return self.logit_scale == 1.0 and self.softcap is None

    def logits(self, raw: Tensor) -> Tensor:
        """The model's logits from raw ones, any shape."""
        scaled = raw * self.logit_scale
        return scaled if self.softcap is None else (scaled / self.softcap).tanh() * self.softcap


def scaling_of(model: PreTrainedModel, block: nn.Module) -> Scaling:
    """The constants of ``model``; ``block`` is any of its blocks."""
    row = next((row for row in ROWS if row.model_type == model.config.model_type), None)
    if row is None:
        return Scaling()
    scale = 1.0 if row.logit_factor is None else float(attrgetter(row.logit_factor)(model))
    if row.logit_divisor is not None:
        scale /= attrgetter(row.logit_divisor)(model)
    return Scaling(
        branch=1.0 if row.branch is None else float(attrgetter(row.branch)(block)),
        logit_scale=scale,
        softcap=None if row.softcap is None else attrgetter(row.softcap)(model),
    )
