"""Linears, plain or reparametrised.

* weight_norm: ``W = g * V / |V|`` row by row, ``g`` trained (1602.07868, eq. 2), by torch.
* weight_conditioning: ``W = V / |V|`` row by row, without a trained length: the row
  equilibration of 2409.03424. The lengths of ``V``'s rows, initial ones too, then say nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import weight_norm
from transformers import initialization as init


class RowEquilibration(nn.Module):
    """Divides each row of a weight by its length."""

    def forward(self, weight: Float[Tensor, "out in_"]) -> Float[Tensor, "out in_"]:
        """``V / |V|``; a row of zeros stays one."""
        length = torch.linalg.vector_norm(weight, dim=1, keepdim=True)
        return weight / length.clamp_min(torch.finfo(weight.dtype).tiny)


def conditioned(linear: nn.Linear) -> nn.Module:
    """The linear with its weight's rows divided by their lengths."""
    return parametrize.register_parametrization(linear, "weight", RowEquilibration())


LINEARS: Mapping[str, Callable[[nn.Linear], nn.Module]] = MappingProxyType(
    {
        "plain": lambda linear: linear,
        "weight_norm": weight_norm,
        "weight_conditioning": conditioned,
    }
)
"""What is done to each linear of a block, by name."""


def draw_reparametrised(linear: nn.Linear, std: float) -> None:
    """Draw ``V`` of a reparametrised linear, and give ``W`` its lengths where they are trained.

    Args:
        linear: made by ``weight_norm`` or ``conditioned``.
        std: standard deviation of ``V``.
    """
    made_of: nn.Module = linear.get_submodule("parametrizations.weight")
    parts = dict(made_of.named_parameters(recurse=False))
    if "original" in parts:
        init.normal_(parts["original"], mean=0.0, std=std)
        return
    init.normal_(parts["original1"], mean=0.0, std=std)
    lengths = torch.linalg.vector_norm(parts["original1"].detach(), dim=1, keepdim=True)
    init.copy_(parts["original0"], lengths)
