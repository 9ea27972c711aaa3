"""The forms in which a scale-free model is written beside its clean one.

* ``clean``: :class:`~normlens.norms.FixedScale` modules, as training leaves them.
* ``eps``: the public LN-free format: live norms with eps 1e12.
* ``folded``: no norms at all where the linears after them can take them in.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import torch
from transformers import PreTrainedModel

from normlens.models.build import build_lens
from normlens.models.copying import structural_copy
from normlens.models.edits import Edit, EncodeEps, Fold, convert
from normlens.models.export import write_model
from normlens.models.lens import Identity, Lens, Lineage
from normlens.models.opening import open_model
from normlens.models.verify import sample_tokens
from normlens.training.removal import NormRemoval
from normlens.training.removal_sites import removal_switches
from normlens.training.schedule import removal_schedule

Form = Literal["clean", "eps", "folded"]

EDITS: dict[Form, Edit] = {"eps": EncodeEps(), "folded": Fold()}


def check_exports(model: PreTrainedModel, forms: Iterable[Form]) -> None:
    """Try the forms on a copy of ``model`` whose scales are frozen at once.

    What training changes does not decide whether a form exists, so a run that could not be
    exported is refused before it starts.

    Args:
        model: with live norms; it is left as it is.
        forms: to try.

    Raises:
        NotApplicable: a form does not exist for the model; says why.
    """
    edits = [EDITS[form] for form in forms if form in EDITS]
    if not edits:
        return
    copy = structural_copy(model)
    removal = NormRemoval(copy, removal_schedule(removal_switches(copy)))
    with torch.no_grad():
        copy(input_ids=sample_tokens(copy), use_cache=False)
    removal.observe()
    removal.finish()
    name = model.config.name_or_path or type(model).__name__
    lens = build_lens(copy, None, Identity(name, "memory", "", ""), Lineage())
    for edit in edits:
        convert(lens, edit)


def write_exports(model: Path, forms: Iterable[Form]) -> list[Path]:
    """Write the model in directory ``model`` in other forms beside it, as ``<model>-<form>``.

    Args:
        model: a clean scale-free model.
        forms: ``clean`` is there already and is passed over.

    Raises:
        NotApplicable: a form does not exist for the model; says why.
        OutputError: a directory cannot be written.
    """
    written: list[Path] = []
    lens: Lens | None = None
    for form in dict.fromkeys(forms):
        if form not in EDITS:
            continue
        lens = lens or open_model(model)
        converted = convert(lens, EDITS[form]).lens
        path = model.with_name(f"{model.name}-{form}")
        # A folded weight is a product; rounding it to float16 would move the logits once more.
        storage = torch.float32 if form == "folded" else torch.float16
        write_model(
            converted.model,
            converted.tokenizer,
            path,
            card={**_card(model), "form": form, "edits": list(converted.edits)},
            storage=storage,
            replace=True,
        )
        written.append(path)
    return written


def _card(model: Path) -> dict[str, object]:
    card = model / "normlens.json"
    return json.loads(card.read_text(encoding="utf-8")) if card.is_file() else {}
