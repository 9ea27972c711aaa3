"""Applying edits one after another, each checked by running the model before and after.

    error = max|logits - logits_edited| / max|logits|

on two fixed sequences of tokens; the last hidden states stand in for logits in an encoder.
An edit that claims to be exact and is not raises.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from normlens import tolerances
from normlens.errors import NotApplicable, VerificationError
from normlens.hooks import model_lock
from normlens.models.build import build_lens
from normlens.models.context import context_length
from normlens.models.edits.edit import Edit
from normlens.models.edits.precision import coarsest
from normlens.models.lens import Lens
from normlens.models.norm_classes import NO_CLASSES, NormClasses

SEQUENCES, POSITIONS = 2, 48


@dataclass(frozen=True)
class EditCheck:
    """What one edit did to the logits.

    Attributes:
        edit: its name.
        exact: whether it claims to keep them.
        difference: ``max|logits - logits_edited|``, in logits.
        error: the same over ``max|logits|``, dimensionless.
        tolerance: largest ``error`` allowed; NaN for an inexact edit.
        passed: ``error <= tolerance``; True for an inexact edit.
        notes: what the edit left as it was, and why.
    """

    edit: str
    exact: bool
    difference: float
    error: float
    tolerance: float
    passed: bool
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Conversion:
    """An edited lens and the checks of the edits that made it, in order."""

    lens: Lens
    checks: tuple[EditCheck, ...]


def convert(lens: Lens, *edits: Edit, norm_classes: NormClasses = NO_CLASSES) -> Conversion:
    """Apply ``edits`` in order.

    Args:
        lens: left as it is.
        edits: at least one.
        norm_classes: as given to :func:`~normlens.models.open_model`.

    Raises:
        NotApplicable: an edit does not apply; the message says why.
        VerificationError: an exact edit did not keep the logits.
    """
    checks: list[EditCheck] = []
    for edit in edits:
        edited = edit(lens)
        try:
            new = build_lens(
                edited.model,
                lens.tokenizer,
                lens.identity,
                lens.lineage,
                (*lens.edits, edit.name),
                norm_classes,
            )
        except RuntimeError as error:  # torch refuses shapes that do not fit together
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise NotApplicable(
                f"{type(lens.model).__name__} cannot run what {edit.name} makes of it: {reason}"
            ) from error
        checks.append(_check(edit, edited.notes, lens, new))
        _refuse_failed(checks[-1], lens)
        lens = new
    return Conversion(lens, tuple(checks))


def _check(edit: Edit, notes: tuple[str, ...], before: Lens, after: Lens) -> EditCheck:
    old, new = sample_logits(before), sample_logits(after)
    difference = (new - old).abs().max().item()
    error = difference / max(old.abs().max().item(), torch.finfo(torch.float64).tiny)
    exact = edit.tolerance is not None
    tolerance = (
        math.nan
        if edit.tolerance is None
        else tolerances.for_dtype(edit.tolerance, coarsest(before, after))
    )
    passed = error <= tolerance if exact else math.isfinite(error)
    return EditCheck(edit.name, exact, difference, error, tolerance, passed, notes)


def _refuse_failed(check: EditCheck, lens: Lens) -> None:
    if check.passed:
        return
    if not check.exact:
        raise VerificationError(
            f"{check.edit} on {lens.identity.name} gives logits that are not finite; edit fewer "
            "norms, or open the model in a wider dtype"
        )
    raise VerificationError(
        f"{check.edit} should keep the logits of {lens.identity.name} but moves them by "
        f"{check.error:.2g} of the largest one (tolerance {check.tolerance:.2g}); "
        "open the model in a wider dtype, or report it"
    )


@torch.inference_mode()
def sample_logits(lens: Lens) -> Float[Tensor, "batch pos out"]:
    """Logits, or last hidden states, of two fixed sequences of spread-out ids; float64."""
    model = lens.model
    embedding = model.get_input_embeddings().get_parameter("weight")
    positions = min(POSITIONS, context_length(lens))
    ids = torch.arange(SEQUENCES * positions, device=embedding.device) * 7919
    ids = (ids % embedding.shape[0]).reshape(SEQUENCES, positions)
    with model_lock(model):
        return model(input_ids=ids, use_cache=False, return_dict=True)[0].double()
