"""Rotating the residual basis: what depends on single dimensions goes, the function stays.

With ``x' = Q x`` for an orthogonal Q, every embedding row and writer is multiplied by Q,
``W' = Q W``, and every reader by its transpose, ``W' = W Q^T``. A norm without gain that
divides by the length of its input commutes with Q, so the logits stay; outlier dimensions
do not. Exact.

Sources: SliceGPT 2401.15024, section 3 (computational invariance); QuaRot 2404.00456.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from normlens.errors import NotApplicable
from normlens.models.copying import structural_copy
from normlens.models.edits.conversion import convert
from normlens.models.edits.edit import Edited
from normlens.models.edits.linears import (
    embedding_table,
    linear_weights,
    set_embedding_table,
    set_linear_weights,
)
from normlens.models.edits.rms import is_constant
from normlens.models.edits.stream import Stream, stream_of
from normlens.models.edits.untie import untie_in_place
from normlens.models.lens import Lens, NormSite
from normlens.models.parameters import gain_and_bias
from normlens.norms import NormKind

ISOTROPIC = frozenset(
    {
        NormKind.RMS_NORM,
        NormKind.SIMPLE_RMS_NORM,
        NormKind.SCALE_NORM,
        NormKind.L2_NORM,
        NormKind.FIXED_SCALE,
        NormKind.IDENTITY,
    }
)
"""Kinds that commute with a rotation where they do not centre and have no gain."""


@dataclass(frozen=True)
class Rotate:
    """See :func:`rotate`."""

    seed: int = 0

    @property
    def tolerance(self) -> str:
        """Exact: the row of the tolerance file."""
        return "conversion_logits"

    @property
    def name(self) -> str:
        """``rotate=SEED``."""
        return f"rotate={self.seed}"

    def __call__(self, lens: Lens) -> Edited:
        """The rotated model."""
        stream = stream_of(lens)
        for site in (*stream.readers, *stream.branch_norms):
            _require_isotropic(lens, site)
        model = structural_copy(lens.model)
        untie_in_place(model)
        _rotate_in_place(model, stream, random_rotation(stream.readers[-1].spec.width, self.seed))
        return Edited(model)


def rotate(lens: Lens, seed: int = 0) -> Lens:
    """A lens of the same function in a random orthonormal basis of the residual stream.

    Args:
        lens: left as it is.
        seed: of the rotation.

    Raises:
        NotApplicable: a norm on the stream centres its input or has a gain or a bias, or
            something reads or scales the stream without a norm.
    """
    return convert(lens, Rotate(seed)).lens


def random_rotation(width: int, seed: int) -> Float[Tensor, "width width"]:
    """A uniformly (Haar) distributed orthogonal matrix; float64, on the CPU.

    Q of the QR decomposition of a Gaussian matrix, columns signed so that R has a positive
    diagonal (Mezzadri, math-ph/0609050).
    """
    generator = torch.Generator().manual_seed(seed)
    gaussian = torch.randn(width, width, generator=generator, dtype=torch.float64)
    q, r = torch.linalg.qr(gaussian)
    return q * r.diagonal().sign()


def _require_isotropic(lens: Lens, site: NormSite) -> None:
    name, spec = lens.identity.name, site.spec
    if spec.centred:
        raise NotApplicable(
            f"norm {site.label} of {name} subtracts the mean over dimensions, which a rotation "
            "does not keep; convert to rms first"
        )
    if spec.kind not in ISOTROPIC:
        raise NotApplicable(
            f"norm {site.label} of {name} is {spec.kind.value}, which depends on the basis"
        )
    gamma, beta = gain_and_bias(lens, site)
    if not is_constant(gamma) or (beta is not None and bool(beta.any())):
        hint = "fold first" if site.feeds else "no linear reads its output to fold them into"
        raise NotApplicable(
            f"norm {site.label} of {name} has a gain or a bias per dimension; {hint}"
        )


def _rotate_in_place(model: torch.nn.Module, stream: Stream, q: Tensor) -> None:
    for path in stream.embeddings:
        module = model.get_submodule(path)
        table = embedding_table(module, path)
        set_embedding_table(module, table @ q.T.to(table.device))
    for path in stream.writers:
        # A norm between writer and stream commutes with the rotation as well.
        module = model.get_submodule(path)
        weight, bias = linear_weights(module, path)
        turned = None if bias is None else q.to(bias.device) @ bias
        set_linear_weights(module, q.to(weight.device) @ weight, turned)
    for path in dict.fromkeys(path for site in stream.readers for path in site.feeds):
        module = model.get_submodule(path)
        weight, bias = linear_weights(module, path)
        set_linear_weights(module, weight @ q.T.to(weight.device), bias)
