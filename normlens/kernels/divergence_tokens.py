"""How far apart two models' predictions are, token by token, in bounded memory.

For the next-token distributions p of the model and q of the reference, ``d = ln q - ln p``
and ``s = ln(1 + exp d)``, all in nats:

    KL(p || q)  = -sum p d
    KL(q || p)  =  sum q d
    JSD(p, q)   = (KL(p || m) + KL(q || m)) / 2 with m = (p + q) / 2
                = (sum p (ln 2 - s) + sum q (ln 2 - s + d)) / 2,       in [0, ln 2]

The second form needs no logarithm of a mixture and is exactly 0 where p equals q. Logits are
gathered and upcast to float32 or wider a few rows at a time. A row with a NaN or infinite
logit gives a NaN.

Source: Lin 1991, Divergence measures based on the Shannon entropy, eq. 4.1 (weights 1/2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import log_softmax, softplus

from normlens.kernels.predictions import Targets, chunks


@dataclass(frozen=True)
class Divergences:
    """Quantities per target, nats; float32 or the logits' wider dtype.

    ``top`` and ``reference_top`` are the most probable ids (of equals, the first).
    """

    jsd: Float[Tensor, " token"]
    kl_model_reference: Float[Tensor, " token"]
    kl_reference_model: Float[Tensor, " token"]
    loss: Float[Tensor, " token"]
    reference_loss: Float[Tensor, " token"]
    top: Int[Tensor, " token"]
    reference_top: Int[Tensor, " token"]

    @property
    def delta_loss(self) -> Float[Tensor, " token"]:
        """Loss of the model minus that of the reference."""
        return self.loss - self.reference_loss

    @property
    def agreement(self) -> Float[Tensor, " token"]:
        """1 where both find the same id most probable, else 0."""
        return (self.top == self.reference_top).to(self.jsd.dtype)


@torch.no_grad()
def compare_predictions(
    logits: Float[Tensor, "batch pos vocab"],
    reference_logits: Float[Tensor, "batch pos vocab"],
    targets: Targets,
) -> Divergences:
    """Divergences of every target.

    Args:
        logits: of the model.
        reference_logits: of the reference, over the same vocabulary.
        targets: where to compare.
    """
    dtype = torch.promote_types(logits.dtype, reference_logits.dtype)
    dtype = torch.promote_types(dtype, torch.float32)
    count = len(targets.token)
    values = torch.empty(5, count, dtype=dtype, device=logits.device)
    tops = torch.empty(2, count, dtype=torch.int64, device=logits.device)
    pairs = zip(chunks(logits, targets), chunks(reference_logits, targets), strict=True)
    for (rows, where), (reference_rows, _) in pairs:
        tops[:, where] = torch.stack([rows.argmax(-1), reference_rows.argmax(-1)])
        log_p = log_softmax(rows.to(dtype), -1)
        log_q = log_softmax(reference_rows.to(dtype), -1)
        token = targets.token[where][:, None]
        loss, reference_loss = -log_p.gather(-1, token)[:, 0], -log_q.gather(-1, token)[:, 0]
        values[:, where] = torch.stack([*_divergences(log_p, log_q), loss, reference_loss])
    return Divergences(*values, *tops)


def _divergences(
    log_p: Float[Tensor, "chunk vocab"], log_q: Float[Tensor, "chunk vocab"]
) -> tuple[Tensor, Tensor, Tensor]:
    """JSD, KL(p || q) and KL(q || p); the arguments' memory is used up."""
    d = log_q - log_p
    p, q = log_p.exp_(), log_q.exp_()
    forward, backward = -(p * d).sum(-1), (q * d).sum(-1)
    shared = math.log(2) - softplus(d)
    jsd = (p.mul_(shared).sum(-1) + q.mul_(shared.add_(d)).sum(-1)) / 2
    return jsd, forward, backward
