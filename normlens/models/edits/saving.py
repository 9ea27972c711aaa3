"""Writing an edited model and reading it back before the directory appears.

The directory is written under another name, opened as any model is, and run on the sample
that edits are checked on; only if its logits are those of the lens does it get its name.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from normlens import tolerances
from normlens.atomic import atomic_directory
from normlens.errors import VerificationError
from normlens.models.build import build_lens
from normlens.models.checkpoint import load_checkpoint_directory
from normlens.models.edits.conversion import EditCheck, sample_logits
from normlens.models.edits.precision import coarsest
from normlens.models.export import write_model
from normlens.models.lens import Lens


def save_lens(
    lens: Lens,
    path: Path,
    *,
    card: dict[str, object] | None = None,
    storage: torch.dtype | None = None,
    replace: bool = False,
) -> EditCheck:
    """Write the model of a lens to ``path`` and check what was written.

    Args:
        lens: with or without edits.
        path: directory to create.
        card: as :func:`~normlens.models.export.write_model`; by default the model it comes
            from and the edits.
        storage: dtype of the weights, by default the model's own; a narrower one rounds.
        replace: whether an existing directory may be replaced.

    Returns:
        How far the logits of the model that was read back are from those of the lens.

    Raises:
        NotApplicable: the model has a module that no file describes.
        VerificationError: what was read back is another function than the lens.
        OutputError: ``path`` exists and ``replace`` is false, or cannot be written.
    """
    storage = storage or lens.model.dtype
    model = lens.model
    with atomic_directory(path, replace=replace) as temporary:
        written = temporary / "model"
        write_model(model, lens.tokenizer, written, card=card or edit_card(lens), storage=storage)
        read = load_checkpoint_directory(written, model.dtype)
        nn.Module.to(read, model.device)
        again = build_lens(read, lens.tokenizer, lens.identity, lens.lineage, lens.edits)
        check = _check(lens, again, storage)
        for file in written.iterdir():
            file.rename(temporary / file.name)
        written.rmdir()
    return check


def edit_card(lens: Lens) -> dict[str, object]:
    """Provenance of an edited model."""
    identity = lens.identity
    return {
        "purpose": f"{identity.name} after {', '.join(lens.edits) or 'no edit'}",
        "licence": identity.licence,
        "quantised_from": identity.quantised_from,
        "ancestor": identity.name,
        "ancestor_sha256": identity.weights_sha256,
        "edits": list(lens.edits),
    }


def _check(lens: Lens, again: Lens, storage: torch.dtype) -> EditCheck:
    old, new = sample_logits(lens), sample_logits(again)
    difference = (new - old).abs().max().item()
    error = difference / old.abs().max().item()
    narrow = torch.finfo(storage).bits < torch.finfo(lens.model.dtype).bits
    dtype = str(storage).removeprefix("torch.") if narrow else coarsest(lens)
    tolerance = tolerances.for_dtype("conversion_logits", dtype)
    if not error <= tolerance:
        raise VerificationError(
            f"the saved model moves the logits by {error:.2g} of the largest one (tolerance "
            f"{tolerance:.2g} for weights in {dtype}); nothing was written"
        )
    stored = str(storage).removeprefix("torch.")
    return EditCheck(f"saved in {stored}", True, difference, error, tolerance, True)
