"""Pre-LN to Pre-CRMSNorm: one coordinate fewer, since the others determine it.

A stream of mean 0 has ``x_d = -(x_1 + ... + x_{d-1})``, so its last coordinate is dropped:

1. The Pre-RMSNorm form (:mod:`normlens.models.edits.rms`).
2. Every embedding and writer loses its last output.
3. Every reader takes ``W' = W[:, :-1] - W[:, -1:]``.
4. RMSNorm becomes ``CRMSNorm(x) = x / sqrt((sum x^2 + (sum x)^2) / d + eps)`` over d-1.

Exact. Source: 2305.14858, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from normlens.errors import NotApplicable
from normlens.models.edits.conversion import convert
from normlens.models.edits.edit import Edited
from normlens.models.edits.fold import plain, vanishes
from normlens.models.edits.install import install_norm
from normlens.models.edits.linears import (
    embedding_table,
    linear_weights,
    set_embedding_table,
    set_linear_weights,
)
from normlens.models.edits.rms import pre_rms_model
from normlens.models.lens import Lens
from normlens.norms import NormKind


@dataclass(frozen=True)
class ToCrms:
    """See :func:`to_crms`."""

    @property
    def name(self) -> str:
        """What ``lens.edits`` records."""
        return "crms"

    @property
    def tolerance(self) -> str:
        """Exact: the row of the tolerance file."""
        return "conversion_logits"

    def __call__(self, lens: Lens) -> Edited:
        """The Pre-CRMSNorm model."""
        stream, model = pre_rms_model(lens)
        if stream.branch_norms:
            raise NotApplicable(
                f"norm {stream.branch_norms[0].label} of {lens.identity.name} stands on the output "
                "of a branch and needs all of its coordinates; convert to rms instead"
            )
        for site in stream.readers:
            if site.spec.kind is not NormKind.LAYER_NORM and not vanishes(site.spec):
                raise NotApplicable(
                    f"norm {site.label} of {lens.identity.name} is {site.spec.kind.value}, which "
                    "has no form that works without the last coordinate; convert to rms instead"
                )
        for path in stream.embeddings:
            module = model.get_submodule(path)
            set_embedding_table(module, embedding_table(module, path)[:, :-1])
        for path in stream.writers:
            module = model.get_submodule(path)
            weight, bias = linear_weights(module, path)
            set_linear_weights(module, weight[:-1], None if bias is None else bias[:-1])
        for path in dict.fromkeys(path for site in stream.readers for path in site.feeds):
            module = model.get_submodule(path)
            weight, bias = linear_weights(module, path)
            set_linear_weights(module, weight[:, :-1] - weight[:, -1:], bias)
        for site in stream.readers:
            if not vanishes(site.spec):
                spec = replace(
                    plain(site.spec),
                    kind=NormKind.CRMS_NORM,
                    centred=False,
                    width=site.spec.width - 1,
                )
                install_norm(model, site.path, spec, None, None)
        return Edited(model)


def to_crms(lens: Lens) -> Lens:
    """A lens of the same function whose residual stream is one coordinate narrower.

    Raises:
        NotApplicable: as :func:`~normlens.models.edits.rms.to_rms`, or the model class
            cannot hold a stream of another width than its config says.
    """
    return convert(lens, ToCrms()).lens
