"""Direct effects by their definition: remove one component, run the norm, read all logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Norm:
    """A final norm in float64; ``kind`` is layer_norm, rms_norm, fixed_scale or identity."""

    kind: str
    eps: float = 0.0
    constant: float = 1.0
    gamma: Tensor | None = None
    beta: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        width = x.shape[-1:]
        if self.kind == "layer_norm":
            return F.layer_norm(x, width, self.gamma, self.beta, self.eps)
        if self.kind == "rms_norm":
            return F.rms_norm(x, width, self.gamma, self.eps)
        if self.kind == "fixed_scale":
            y = (x - x.mean(-1, keepdim=True)) / self.constant
            y = y if self.gamma is None else y * self.gamma
            return y if self.beta is None else y + self.beta
        assert self.kind == "identity"
        return x

    def scale(self, x: Tensor) -> Tensor:
        if self.kind == "layer_norm":
            return (x.var(-1, unbiased=False, keepdim=True) + self.eps).sqrt()
        if self.kind == "rms_norm":
            return (x.pow(2).mean(-1, keepdim=True) + self.eps).sqrt()
        return torch.full_like(x[..., :1], self.constant)

    def frozen(self, c: Tensor, scale: Tensor) -> Tensor:
        """The linear part of the norm with the scale of another input."""
        if self.kind in ("layer_norm", "fixed_scale"):
            c = c - c.mean(-1, keepdim=True)
        y = c / scale
        return y if self.gamma is None else y * self.gamma


def centred_logit(x: Tensor, w_u: Tensor, b_u: Tensor | None, targets: Tensor) -> Tensor:
    """Logit of the target minus the mean logit, for normed ``x``."""
    logits = x @ w_u
    if b_u is not None:
        logits = logits + b_u
    logits = logits - logits.mean(-1, keepdim=True)
    return logits.gather(-1, targets[..., None])[..., 0]


def effects(
    component: Tensor,
    residual: Tensor,
    norm: Norm,
    w_u: Tensor,
    b_u: Tensor | None,
    targets: Tensor,
) -> tuple[Tensor, Tensor]:
    """DLA and direct effect of one component ``[batch pos d_model]``, all float64."""
    dla = centred_logit(norm.frozen(component, norm.scale(residual)), w_u, None, targets)
    intact = centred_logit(norm(residual), w_u, b_u, targets)
    without = centred_logit(norm(residual - component), w_u, b_u, targets)
    return dla, intact - without


def through_attention_norm(
    terms: list[Tensor], norm: Norm, branch: float
) -> tuple[list[Tensor], Tensor | None]:
    """What heads and biases add once a norm has seen their sum: each part, and the norm's bias."""
    whole = torch.stack(terms).sum(0)
    parts = [branch * norm.frozen(term, norm.scale(whole)) for term in terms]
    return parts, None if norm.beta is None else branch * norm.beta.expand_as(whole)
