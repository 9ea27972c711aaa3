"""Guard of the component view: it must say what the model says, and its parts must add up.

1. Both trees run on one fixed batch, one row of it padded on the right. Their
   log-probabilities must agree; where they do not, the first norm site in order of
   execution whose output differs is named.
2. Embeddings, heads, attention biases and MLPs must sum to the final residual.
3. The final norm's output times the unembedding, scaled and soft-capped as the view says,
   must be the model's logits.

An architecture that multiplies a branch or the logits by a constant nobody knows of, or
that has more between the final norm and the logits than a linear map, is refused here.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Int
from torch import Tensor, nn

from normlens.errors import ComponentMismatch, UsageError
from normlens.hooks import Hook, hooked
from normlens.models.components_read import Components, read_components, sum_components
from normlens.models.components_view import ComponentView, forward
from normlens.models.lens import Lens, Role
from normlens.tolerances import for_dtype

_LENGTH = 12
_PADDED = 4


def verify_components(lens: Lens, view: ComponentView) -> float:
    """Compare ``view`` with the model on a fixed batch.

    Returns:
        ``max|log p - log p_view| / max(1, max|log p|)``, dimensionless; at most the tolerance
        ``component_view``.

    Raises:
        UsageError: the model is in training mode, where dropout makes every pass differ.
        ComponentMismatch: the difference exceeds the tolerance for the model's dtype, the
            components do not sum to the final residual, or the logits are not read from it
            as the view says.
    """
    name = lens.identity.name
    if lens.model.training:
        raise UsageError(f"{name} is in training mode: call model.eval() to read its components")
    ids, mask = _sample(lens, view)
    real = mask.bool()
    normed: list[Tensor] = []
    with torch.no_grad():
        theirs = lens.model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        with hooked(view.bridge, [Hook(view.final_norm, "output", normed.append, "final norm")]):
            ours = forward(view, ids, mask)
        assert ours is not None
        difference = _relative_difference(_log_probs(theirs[real]), _log_probs(ours[real]))
        tolerance = for_dtype("component_view", _dtype(theirs))
        if difference > tolerance:
            raise ComponentMismatch(
                f"the component view of {name} differs from the model by {difference:.3g} of the "
                f"largest log-probability (tolerance {tolerance:.3g}); "
                f"{_first_difference(lens, view, ids, mask)}; use analyses without components"
            )
        _verify_sum(lens, view, read_components(view, ids, mask), real)
        _verify_logits(name, view, normed[0][real], ours[real])
    return difference


def _verify_sum(lens: Lens, view: ComponentView, components: Components, real: Tensor) -> None:
    residual = components.residuals[-1]
    total, absolute = sum_components(view, components)
    error = ((total - residual).abs() / absolute.clamp(min=1.0))[real].max().item()
    # A norm after attention may compute in float32 whatever the model's dtype.
    dtypes = {s.spec.compute_dtype for s in lens.sites if s.role is Role.POST_ATTN} - {"input"}
    if error > max(for_dtype("component_sum", d) for d in (_dtype(residual), *dtypes)):
        raise ComponentMismatch(
            f"heads, MLPs and embeddings of {lens.identity.name} do not sum to its final residual "
            f"(relative error {error:.3g}): the architecture scales or merges them; use analyses "
            "without components"
        )


def _verify_logits(name: str, view: ComponentView, normed: Tensor, logits: Tensor) -> None:
    raw = normed @ view.W_U
    raw = raw if view.b_U is None else raw + view.b_U
    error = _relative_difference(logits, view.scaling.logits(raw))
    if error > for_dtype("component_view", _dtype(logits)):
        raise ComponentMismatch(
            f"logits of {name} are not its final norm's output times the unembedding (relative "
            f"error {error:.3g}): the architecture scales or caps them in another way; use "
            "analyses without components"
        )


def _sample(
    lens: Lens, view: ComponentView
) -> tuple[Int[Tensor, "batch pos"], Int[Tensor, "batch pos"]]:
    """Token ids spread over the vocabulary by a prime stride, and their mask."""
    device = lens.model.device
    ids = (7919 * torch.arange(2 * _LENGTH, device=device) + 13) % view.d_vocab
    mask = torch.ones(2, _LENGTH, dtype=torch.long, device=device)
    mask[1, -_PADDED:] = 0
    return ids.view(2, _LENGTH), mask


def _first_difference(lens: Lens, view: ComponentView, ids: Tensor, mask: Tensor) -> str:
    theirs = _outputs(
        lens,
        lens.model,
        lens.model.get_submodule,
        lambda: lens.model(input_ids=ids, attention_mask=mask, use_cache=False),
    )
    ours = _outputs(lens, view.bridge, view.sites.__getitem__, lambda: forward(view, ids, mask))
    for site in sorted(lens.sites, key=lambda site: site.order):
        a, b = theirs[site.path], ours[site.path]
        if _relative_difference(a, b) > for_dtype("site_residual", _dtype(a)):
            return f"the first norm to differ is {site.label} ({site.path})"
    return "no norm differs, so the cause is after the last one"


def _outputs(
    lens: Lens,
    tree: nn.Module,
    module: Callable[[str], nn.Module],
    run: Callable[[], object],
) -> dict[str, Tensor]:
    """Output of every norm site in one run of ``tree``, by path."""
    outputs: dict[str, Tensor] = {}

    def keep(path: str) -> Callable[[Tensor], None]:
        return lambda output: outputs.update({path: output})

    hooks = [Hook(module(s.path), "output", keep(s.path), s.label) for s in lens.sites]
    with hooked(tree, hooks):
        run()
    return outputs


def _log_probs(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)


def _relative_difference(a: Tensor, b: Tensor) -> float:
    """``max|a - b| / max(1, max|a|)``; equal infinities and NaN on both sides count as equal."""
    same = (a == b) | (a.isnan() & b.isnan())
    difference = (a - b).abs().masked_fill(same, 0.0).nan_to_num(torch.inf).max().item()
    return difference / max(1.0, a[a.isfinite()].abs().max().item())


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
