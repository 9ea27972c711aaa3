"""Weights of linears and embeddings, read in float64 and written back in their dtype.

A written weight is a new parameter: the model that the module's tensor is shared with
keeps its own.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized
from transformers.pytorch_utils import Conv1D

from normlens.errors import NotApplicable


def is_plain_linear(module: nn.Module) -> bool:
    """Whether the module computes ``x W^T + b`` from parameters that it holds itself."""
    return (
        isinstance(module, (nn.Linear, Conv1D))
        and not is_parametrized(module)
        and module.weight.is_floating_point()
    )


def linear_weights(
    module: nn.Module, path: str
) -> tuple[Float[Tensor, "out in"], Float[Tensor, " out"] | None]:
    """Weight ``[out in]`` and bias of a linear or Conv1D; float64.

    Raises:
        NotApplicable: the module is neither, is quantised or makes its weight from others.
    """
    if not is_plain_linear(module):
        raise NotApplicable(
            f"{path} is a {type(module).__name__} that holds no plain weight, so nothing can be "
            "folded into it"
        )
    weight = module.get_parameter("weight").detach().double()
    bias = dict(module.named_parameters(recurse=False)).get("bias")
    return (
        weight.T if isinstance(module, Conv1D) else weight,
        None if bias is None else bias.detach().double(),
    )


def set_linear_weights(module: nn.Module, weight: Tensor, bias: Tensor | None) -> None:
    """Put a weight ``[out in]`` and a bias in; a Linear without bias gets one if given."""
    old = module.get_parameter("weight")
    if isinstance(module, Conv1D):
        module.nx, module.nf = weight.shape[1], weight.shape[0]
        module.weight = _parameter(weight.T, old)
    elif isinstance(module, nn.Linear):
        module.out_features, module.in_features = weight.shape
        module.weight = _parameter(weight, old)
    if bias is not None:
        module.register_parameter("bias", _parameter(bias, old))


def embedding_table(module: nn.Module, path: str) -> Float[Tensor, "row width"]:
    """The table of an embedding, float64.

    Raises:
        NotApplicable: the module is no embedding.
    """
    if not isinstance(module, nn.Embedding):
        raise NotApplicable(f"{path} is a {type(module).__name__} and no table of embeddings")
    return module.weight.detach().double()


def set_embedding_table(module: nn.Module, table: Tensor) -> None:
    """Put a table ``[row width]`` in."""
    assert isinstance(module, nn.Embedding)
    module.embedding_dim = table.shape[1]
    module.weight = _parameter(table, module.weight)


def _parameter(value: Tensor, like: Tensor) -> nn.Parameter:
    value = value.to(like.device, like.dtype, memory_format=torch.contiguous_format, copy=True)
    return nn.Parameter(value.contiguous(), requires_grad=False)
