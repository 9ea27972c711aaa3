"""Pre-LN to Pre-RMSNorm: the same function without subtracting any mean.

1. Fold gain and bias of every norm that reads the residual stream, and a norm on the
   embeddings into them.
2. Subtract from every embedding, and from every weight and bias that writes to the stream,
   its mean over the width of the stream: the stream then has mean 0 at every token.
3. LayerNorm of an input with mean 0 is RMSNorm with the same eps; other kinds that centre
   their input no longer need to.

Step 2 changes the stream by a multiple of the ones direction alone, which LayerNorm removes
anyway. Norms inside attention (queries, keys) do not touch the stream and stay. Exact.
Source: 2305.14858, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor, nn
from transformers import PreTrainedModel

from normlens.errors import NotApplicable
from normlens.models.copying import structural_copy
from normlens.models.edits.conversion import convert
from normlens.models.edits.edit import Edited
from normlens.models.edits.fold import fold_in_place, plain, vanishes, why_not
from normlens.models.edits.install import install_norm
from normlens.models.edits.linears import (
    embedding_table,
    linear_weights,
    set_embedding_table,
    set_linear_weights,
)
from normlens.models.edits.stream import Stream, stream_of
from normlens.models.edits.untie import untie_in_place
from normlens.models.lens import Lens, NormSite, Role
from normlens.models.parameters import gain_and_bias
from normlens.norms import NormKind


@dataclass(frozen=True)
class ToRms:
    """See :func:`to_rms`."""

    @property
    def name(self) -> str:
        """What ``lens.edits`` records."""
        return "rms"

    @property
    def tolerance(self) -> str:
        """Exact: the row of the tolerance file."""
        return "conversion_logits"

    def __call__(self, lens: Lens) -> Edited:
        """The Pre-RMSNorm model."""
        _, model = pre_rms_model(lens)
        return Edited(model)


def to_rms(lens: Lens) -> Lens:
    """A lens of the same function with RMSNorm in place of every LayerNorm on the stream.

    Raises:
        NotApplicable: the model has no LayerNorm on the stream (an RMSNorm model has nothing
            to convert), mixes it with norms that see the mean, or has norms on the stream
            itself or on the outputs of branches that would not keep the mean at 0.
    """
    return convert(lens, ToRms()).lens


def pre_rms_model(lens: Lens) -> tuple[Stream, PreTrainedModel]:
    """Steps 1 to 3 on a structural copy, and the stream of the model it was made from."""
    on_embeddings = tuple(
        site for site in lens.sites if site.role is Role.EMBED and why_not(lens, site) is None
    )
    stream = stream_of(lens, on_embeddings)
    _require_centred(lens, stream)
    model = structural_copy(lens.model)
    untie_in_place(model)
    fold_in_place(model, lens, (*on_embeddings, *stream.readers))
    centre_writers(model, stream)
    for site in stream.branch_norms:
        _centre_bias(model, lens, site)
    for site in stream.readers:
        if not vanishes(site.spec):
            kind = site.spec.kind
            kind = NormKind.RMS_NORM if kind is NormKind.LAYER_NORM else kind
            spec = replace(plain(site.spec), kind=kind, centred=False)
            install_norm(model, site.path, spec, None, None)
    return stream, model


def centre_writers(model: PreTrainedModel, stream: Stream) -> None:
    """Step 2, in place on a structural copy whose embeddings are untied."""
    for path in stream.embeddings:
        module = model.get_submodule(path)
        table = embedding_table(module, path)
        set_embedding_table(module, table - table.mean(1, keepdim=True))
    for path in stream.writers:
        # A branch norm that centres its input does not see this.
        module = model.get_submodule(path)
        weight, bias = linear_weights(module, path)
        bias = None if bias is None else bias - bias.mean()
        set_linear_weights(module, weight - weight.mean(0, keepdim=True), bias)


def _require_centred(lens: Lens, stream: Stream) -> None:
    name, kinds = lens.identity.name, {site.spec.kind for site in stream.readers}
    if kinds <= {NormKind.RMS_NORM}:
        raise NotApplicable(f"{name} has RMSNorm already: no norm on its stream subtracts a mean")
    for site in stream.readers:
        if not site.spec.centred:
            raise NotApplicable(
                f"norm {site.label} of {name} is {site.spec.kind.value}, which sees the mean of "
                "the residual stream; every norm that reads the stream must subtract it"
            )
        reason = why_not(lens, site)
        if reason is not None:
            raise NotApplicable(f"norm {site.label} of {name} cannot be folded: {reason}")
    if NormKind.LAYER_NORM not in kinds:
        raise NotApplicable(f"{name} has no LayerNorm with a live scale on its stream; fold it")
    for site in stream.branch_norms:
        gamma, _ = gain_and_bias(lens, site)
        if not site.spec.centred or not is_constant(gamma):
            raise NotApplicable(
                f"norm {site.label} of {name} adds its output to the residual stream with a gain "
                "per element or without a centred input, so the stream would not have mean 0"
            )


def _centre_bias(model: PreTrainedModel, lens: Lens, site: NormSite) -> None:
    _, beta = gain_and_bias(lens, site)
    if beta is not None:
        module = model.get_submodule(site.path)
        old = module.get_parameter("bias")
        new = (beta - beta.mean()).to(old.device, old.dtype)
        module.register_parameter("bias", nn.Parameter(new, requires_grad=False))


def is_constant(gamma: Tensor | None) -> bool:
    """Whether a gain is one number."""
    return gamma is None or bool((gamma == gamma.flatten()[0]).all())
