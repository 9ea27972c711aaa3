"""When logit attribution applies, and what it takes from a pass."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor

from normlens import tolerances
from normlens.capture.protocol import Components, ComponentWeights, Context, Observed
from normlens.errors import ComponentMismatch, NotApplicable
from normlens.kernels.direct_effect import EMBEDDINGS
from normlens.norms.spec import NormKind
from normlens.results import Check


def weights_in_scope(context: Context) -> ComponentWeights:
    """The component weights of a model whose heads add up to its logits.

    Raises:
        NotApplicable: no component view, or a final norm that is opaque or elementwise and
            no affine map.
    """
    weights = context.weights
    name = context.lens.identity.name
    if weights is None:
        raise NotApplicable(f"{name} has no component view to attribute logits to")
    kind, path = weights.final.spec.kind, weights.final.path
    if kind is NormKind.OPAQUE:
        raise NotApplicable(f"the final norm of {name} ({path}) is opaque: its scale is unknown")
    if not kind.has_scale:
        raise NotApplicable(
            f"the final norm of {name} ({path}) is {kind.value}: it bends every element by itself "
            "and divides by nothing, so with no scale to freeze its output does not split into "
            "one part per component"
        )
    return weights


def components_in_scope(
    observed: Observed, weights: ComponentWeights
) -> tuple[Components, Float[Tensor, "batch pos vocab"]]:
    """Components and raw logits of one batch: before any soft cap or logit scale.

    Raises:
        ComponentMismatch: the pass did not record them, or recorded unknown embeddings.
    """
    if observed.components is None or observed.logits is None:
        raise ComponentMismatch("the pass recorded no components or no logits; it must record both")
    unknown = sorted(set(observed.components.embeddings) - set(EMBEDDINGS))
    if unknown:
        raise ComponentMismatch(
            f"embedding {unknown[0]} is none of {', '.join(EMBEDDINGS)}; no table has a row for it"
        )
    if weights.scaling.keeps_logits:
        return observed.components, observed.logits
    if observed.components.raw_logits is None:
        raise ComponentMismatch("the pass recorded no raw logits; this model scales or caps them")
    return observed.components, observed.components.raw_logits


def select_positions(
    components: Components, sequence: Int[Tensor, " row"], position: Int[Tensor, " row"]
) -> Components:
    """The components at chosen places, as a batch ``[row 1]``."""

    def pick(x: Tensor) -> Tensor:
        return x[sequence, position][:, None]

    return Components(
        embeddings={name: pick(value) for name, value in components.embeddings.items()},
        z=[pick(value) for value in components.z],
        mlp=[pick(value) for value in components.mlp],
        residual=pick(components.residual),
        attention_scale={i: pick(scale) for i, scale in components.attention_scale.items()},
    )


def conservation_check(value: float, context: Context) -> Check:
    """The check that contributions and constants add up to the model's own logits.

    The tolerance is that of the coarsest of the model's dtype and those its final norm and
    norms after attention compute in: Llama's, say, rounds to float32 in a float64 model.
    """
    dtypes = {context.lens.placement.dtype}
    if context.weights is not None:
        dtypes.add(context.weights.final.spec.compute_dtype)
        dtypes |= {norm.spec.compute_dtype for norm in context.weights.post_attention.values()}
    tolerance = max(tolerances.for_dtype("conservation", d) for d in dtypes - {"input"})
    return Check(
        "conservation",
        value,
        tolerance,
        value <= tolerance,
        "largest |sum of contributions - raw logit| / max(1, sum |contributions|) over tokens",
    )
