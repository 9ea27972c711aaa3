"""DLA error of attention heads without the shared kernel, two ways, both vectorised.

Both read the gathered, vocabulary-centred columns of the targets, never the vocabulary, and
give per head the sums over tokens of ``|DLA - DE|`` and ``|DE|``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from normlens.capture.protocol import Components, ComponentWeights


@torch.no_grad()
def head_by_head(
    components: Components, weights: ComponentWeights, targets: Tensor
) -> tuple[Tensor, Tensor]:
    """One head at a time over all tokens, with PyTorch's fused layer norm.

    The direction is centred once, so that DLA is one product; ``LN(r)`` is computed once.
    """
    r, eps = components.residual, _eps(weights)
    width = r.shape[-1:]
    u = _directions(weights, targets)
    scale = (r.var(-1, unbiased=False) + eps).sqrt()
    centred_u = u - u.mean(-1, keepdim=True)
    intact = torch.linalg.vecdot(F.layer_norm(r, width, eps=eps), u)
    errors, sizes = [], []
    for z, w_o in zip(components.z, weights.w_o, strict=True):
        z = z.unflatten(-1, w_o.shape[:2])
        for head in range(len(w_o)):
            c = z[:, :, head] @ w_o[head]
            dla = torch.linalg.vecdot(c, centred_u) / scale
            without = torch.linalg.vecdot(F.layer_norm(r - c, width, eps=eps), u)
            effect = intact - without
            errors.append((dla - effect).abs().sum(dtype=torch.float64))
            sizes.append(effect.abs().sum(dtype=torch.float64))
    return torch.stack(errors), torch.stack(sizes)


@torch.no_grad()
def all_heads_stacked(
    components: Components, weights: ComponentWeights, targets: Tensor
) -> tuple[Tensor, Tensor]:
    """The published procedure at every position: all heads' outputs as one tensor.

    Follows TransformerLens's ``stack_head_results``, ``apply_ln_to_stack`` and a layer norm
    written out, over ``[head batch pos d_model]``.
    """
    r, eps = components.residual, _eps(weights)
    u = _directions(weights, targets)
    centred = r - r.mean(-1, keepdim=True)
    scale = (centred.pow(2).mean(-1, keepdim=True) + eps).sqrt()
    intact = (centred / scale * u).sum(-1)
    outputs = [
        torch.einsum("bphe,hed->hbpd", z.unflatten(-1, w_o.shape[:2]), w_o)
        for z, w_o in zip(components.z, weights.w_o, strict=True)
    ]
    heads = torch.cat(outputs)
    frozen = (heads - heads.mean(-1, keepdim=True)) / scale
    dla = torch.einsum("hbpd,bpd->hbp", frozen, u)
    del frozen
    ablated = r - heads
    ablated = ablated - ablated.mean(-1, keepdim=True)
    ablated = ablated / (ablated.pow(2).mean(-1, keepdim=True) + eps).sqrt()
    effect = intact - torch.einsum("hbpd,bpd->hbp", ablated, u)
    error = (dla - effect).abs().sum((1, 2), dtype=torch.float64)
    return error, effect.abs().sum((1, 2), dtype=torch.float64)


def _directions(weights: ComponentWeights, targets: Tensor) -> Tensor:
    assert weights.gamma is not None
    columns = weights.w_u.T[targets] - weights.w_u.mean(1)
    return columns * weights.gamma.to(columns.dtype)


def _eps(weights: ComponentWeights) -> float:
    eps = weights.final.spec.eps
    assert eps is not None
    return eps
