"""Read every component of one small batch, and add them up again.

    r = sum(embeddings) + sum over layers of ( sum_h z_h W_O[h] + b_O + mlp )

For a prompt or a test: everything is kept, so memory grows with layers x tokens x d_model.
A pass over a corpus hooks the parts of :class:`ComponentView` and keeps what it needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from normlens.hooks import Hook, hooked
from normlens.models.components_view import ComponentView, LayerParts, forward


@dataclass(frozen=True, eq=False)
class Components:
    """Components of one batch, in the dtype of the model; detached.

    Attributes:
        embeddings: output of each embedding module, ``[batch pos d_model]``.
        z: per layer, the heads' mixed values ``[batch pos head d_head]``.
        attention: per layer, what attention added to the residual.
        mlp: per layer, what the MLP added.
        residuals: the residual before each block, then the one the final norm reads.
    """

    embeddings: tuple[Float[Tensor, "batch pos d_model"], ...]
    z: tuple[Float[Tensor, "batch pos head d_head"], ...]
    attention: tuple[Float[Tensor, "batch pos d_model"], ...]
    mlp: tuple[Float[Tensor, "batch pos d_model"], ...]
    residuals: tuple[Float[Tensor, "batch pos d_model"], ...]


def read_components(
    view: ComponentView,
    input_ids: Int[Tensor, "batch pos"],
    attention_mask: Int[Tensor, "batch pos"] | None = None,
) -> Components:
    """Run the view once and keep the output of every component.

    Raises:
        HookMismatch: a part ran more or less than once.
    """
    embeddings: list[Tensor] = []
    z: list[Tensor] = []
    attention: list[Tensor] = []
    mlp: list[Tensor] = []
    residuals: list[Tensor] = []
    hooks = [Hook(m, "output", _keep(embeddings), "embedding") for m in view.embeddings]
    for index, layer in enumerate(view.layers):
        hooks += [
            Hook(layer.block, "input", _keep(residuals), f"block {index}"),
            Hook(layer.out_projection, "input", _keep(z), f"z {index}"),
            Hook(layer.attention_output, "output", _keep(attention), f"attention {index}"),
            Hook(layer.mlp_output, "output", _keep(mlp), f"mlp {index}"),
        ]
    hooks.append(Hook(view.final_norm, "input", _keep(residuals), "final norm"))
    with torch.no_grad(), hooked(view.bridge, hooks):
        forward(view, input_ids, attention_mask, logits=False)
    return Components(
        embeddings=tuple(e.expand_as(residuals[0]) for e in embeddings),
        z=tuple(values.unflatten(-1, (view.n_heads, view.d_head)) for values in z),
        attention=tuple(attention),
        mlp=tuple(mlp),
        residuals=tuple(residuals),
    )


def head_outputs(
    layer: LayerParts, z: Float[Tensor, "batch pos head d_head"]
) -> Float[Tensor, "batch pos head d_model"]:
    """``z_h W_O[h]``: what each head writes, before the shared bias and any norm."""
    return torch.einsum("bphd,hdm->bphm", z, layer.W_O)


def sum_components(
    view: ComponentView, components: Components
) -> tuple[Float[Tensor, "batch pos d_model"], Float[Tensor, "batch pos d_model"]]:
    """Rebuild the final residual from embeddings, heads, attention biases and MLPs.

    Where a norm follows attention, heads do not add up: its output is one term.

    Returns:
        The sum, which should equal ``components.residuals[-1]``, and the sum of the
        components' absolute values, the scale on which rounding errors are judged.
    """
    terms: list[Tensor] = list(components.embeddings)
    for layer, z, attention, mlp in zip(
        view.layers, components.z, components.attention, components.mlp, strict=True
    ):
        if layer.attention_output is layer.out_projection:
            terms += head_outputs(layer, z).unbind(-2)
            terms += [] if layer.b_O is None else [layer.b_O]
        else:
            terms.append(attention)
        terms.append(mlp)
    total = torch.zeros_like(components.residuals[-1])
    absolute = torch.zeros_like(total)
    for term in terms:
        total = total + term
        absolute = absolute + term.abs()
    return total, absolute


def _keep(into: list[Tensor]) -> Callable[[Tensor], None]:
    return lambda value: into.append(value.detach())
