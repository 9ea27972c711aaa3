"""Read every component of one small batch, and add them up again.

    r = embeddings + sum over layers of branch_scale * ( attention + mlp )
    attention = sum_h z_h W_O[h] + b_O, normalised as a whole where a norm follows it

For a prompt or a test: everything is kept, so memory grows with layers x tokens x d_model.
A pass over a corpus hooks the parts of :class:`ComponentView` and keeps what it needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from normlens.hooks import Hook, hooked
from normlens.models.components_view import ComponentView, LayerParts, forward


@dataclass(frozen=True, eq=False)
class Components:
    """Components of one batch, in the dtype of the model; detached.

    Attributes:
        embeddings: the token's and, where there is one, the position's part of the residual
            before block 0, ``[batch pos d_model]``.
        z: per layer, the heads' mixed values ``[batch pos head d_head]``.
        projected: per layer, the output of the out-projection, before any norm.
        attention: per layer, the output of attention, after the norm where there is one.
        mlp: per layer, the output of the MLP, likewise.
        residuals: the residual before each block, then the one the final norm reads.
    """

    embeddings: tuple[Float[Tensor, "batch pos d_model"], ...]
    z: tuple[Float[Tensor, "batch pos head d_head"], ...]
    projected: tuple[Float[Tensor, "batch pos d_model"], ...]
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
    position, z, projected, attention, mlp, residuals = (Kept() for _ in range(6))
    hooks = []
    if view.position_embedding is not None:
        hooks.append(Hook(view.position_embedding, "output", position, "position embedding"))
    for index, layer in enumerate(view.layers):
        hooks += [
            Hook(layer.block, "input", residuals, f"block {index}"),
            Hook(layer.out_projection, "input", z, f"z {index}"),
            Hook(layer.out_projection, "output", projected, f"projected {index}"),
            Hook(layer.attention_output, "output", attention, f"attention {index}"),
            Hook(layer.mlp_output, "output", mlp, f"mlp {index}"),
        ]
    hooks.append(Hook(view.final_norm, "input", residuals, "final norm"))
    with torch.no_grad(), hooked(view.bridge, hooks):
        forward(view, input_ids, attention_mask, logits=False)
    return Components(
        embeddings=split_embeddings(residuals.values[0], *position.values),
        z=tuple(values.unflatten(-1, (view.n_heads, view.d_head)) for values in z.values),
        projected=tuple(projected.values),
        attention=tuple(attention.values),
        # OPT's linears see tokens of all rows in one axis.
        mlp=tuple(m.view_as(r) for m, r in zip(mlp.values, residuals.values, strict=False)),
        residuals=tuple(residuals.values),
    )


def split_embeddings(
    residual: Float[Tensor, "batch pos d_model"],
    position: Float[Tensor, "#batch pos d_model"] | None = None,
) -> tuple[Float[Tensor, "batch pos d_model"], ...]:
    """The residual before block 0 as token part and, where there is one, position part.

    The token part is what is left: whatever the model multiplies its embedding by, or
    normalises it with, is then in it.
    """
    return (residual,) if position is None else (residual - position, position.expand_as(residual))


def head_outputs(
    layer: LayerParts, z: Float[Tensor, "batch pos head d_head"]
) -> Float[Tensor, "batch pos head d_model"]:
    """``z_h W_O[h]``: what each head writes, before the shared bias and any norm."""
    return torch.einsum("bphd,hdm->bphm", z, layer.W_O)


def attention_terms(
    layer: LayerParts,
    z: Float[Tensor, "batch pos head d_head"],
    projected: Float[Tensor, "batch pos d_model"],
) -> Iterator[Tensor]:
    """Terms that sum to the output of attention: one per head, then its biases.

    A norm after attention divides every term by the scale of their sum.
    """
    norm, heads = layer.post_attention, head_outputs(layer, z).unbind(-2)
    biases = [] if layer.b_O is None else [layer.b_O]
    if norm is None:
        yield from (*heads, *biases)
        return
    scale = norm.scale(projected)[..., None]
    yield from (norm.linear(term) / scale for term in (*heads, *biases))
    if norm.beta is not None:
        yield norm.beta.to(projected.dtype)


def sum_components(
    view: ComponentView, components: Components
) -> tuple[Float[Tensor, "batch pos d_model"], Float[Tensor, "batch pos d_model"]]:
    """Rebuild the final residual from embeddings, heads, attention biases and MLPs.

    Returns:
        The sum, which should equal ``components.residuals[-1]``, and the sum of the
        components' absolute values, the scale on which rounding errors are judged.
    """
    terms: list[Tensor] = list(components.embeddings)
    for index, layer in enumerate(view.layers):
        z, projected = components.z[index], components.projected[index]
        branches = (*attention_terms(layer, z, projected), components.mlp[index])
        terms += [term * view.scaling.branch for term in branches]
    total = torch.zeros_like(components.residuals[-1])
    absolute = torch.zeros_like(total)
    for term in terms:
        total = total + term
        absolute = absolute + term.abs()
    return total, absolute


@dataclass(frozen=True)
class Kept:
    """Keeps a copy of every value, since a model may change one in place later."""

    values: list[Tensor] = field(default_factory=list[Tensor])

    def __call__(self, value: Tensor) -> None:
        """Keep ``value``."""
        self.values.append(value.detach().clone())
