"""From the statistics of ``divergence`` to its tables, headline numbers and checks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd
from torch import Tensor

from normlens.capture.protocol import Context, Finding
from normlens.capture.state import State
from normlens.capture.statistics import interval
from normlens.kernels.divergence_cells import CLASSES, Cells
from normlens.kernels.token_strings import token_string
from normlens.models.tokenizers import tokenizer_of
from normlens.results import Check, Headline
from normlens.tolerances import for_dtype

MEASURES = (
    "jsd",
    "kl_model_reference",
    "kl_reference_model",
    "agreement",
    "loss",
    "reference_loss",
    "delta_loss",
)
"""Per-token quantities of which sums are kept, in this order; n comes before them."""

BOUNDED = ("jsd", "kl_model_reference", "kl_reference_model", "agreement", "delta_loss")
"""Those with an interval."""

RANKINGS = {"jsd": ("jsd", 1), "loss rise": ("delta_loss", 1), "loss fall": ("delta_loss", -1)}
"""What worst tokens are ranked by, largest first: a measure and its sign."""

DOCS = {
    "jsd": ("nats", "mean Jensen-Shannon divergence of the predictions, at most ln 2"),
    "kl_model_reference": ("nats", "mean KL(model || reference)"),
    "kl_reference_model": ("nats", "mean KL(reference || model)"),
    "agreement": ("1", "share of predictions whose most probable token is the same"),
    "delta_loss": ("nats/token", "loss of the model minus that of the reference"),
}


def summarise(state: State, cells: Cells, context: Context) -> Finding:
    """Tables, headline numbers, checks and warnings of ``divergence``."""
    group = cells.starts["group"]
    groups = {"all": [group, group + 1], "rest": [group + 1], "first": [group]}
    tables = {
        "summary": pd.DataFrame([{"group": k} | _row(state, v) for k, v in groups.items()]),
        "classes": _classes(state, cells),
        "positions": pd.DataFrame(
            [
                {"low": low, "high": high} | _row(state, [cells.starts["position"] + i])
                for i, (low, high) in enumerate(cells.bounds)
            ]
        ),
        "worst": _worst(state, cells, context),
    }
    replicates = {name: _replicates(state, groups["all"], name) for name in BOUNDED}
    headline = _headline(tables["summary"].iloc[0], replicates)
    return Finding(tables, headline, _checks(state, context), _warnings(state, group), replicates)


def _classes(state: State, cells: Cells) -> pd.DataFrame:
    """Classes that occur; all of them where nothing is predicted."""
    rows = [
        {"partition": partition, "token_class": name} | _row(state, [cells.starts[partition] + i])
        for partition, names in CLASSES.items()
        for i, name in enumerate(names)
    ]
    occurring = [row for row in rows if row["status"] != "no_data"]
    return pd.DataFrame(occurring or rows)


def _row(state: State, members: Sequence[int]) -> dict[str, object]:
    chosen = list(members)
    n = int(state.tensors["n"][chosen].sum())
    overflow = int(state.tensors["overflow"][chosen].sum())
    means = state.tensors["sums"][:, chosen].sum(-1) / n
    row: dict[str, object] = {"n": n}
    for name, value in zip(MEASURES, means.tolist(), strict=True):
        row[name] = value
        if name in BOUNDED:
            row[f"{name}_low"], row[f"{name}_high"] = (
                interval(_replicates(state, chosen, name)) if n else (math.nan, math.nan)
            )
    return row | {"status": "no_data" if not n else "overflow" if overflow else "ok"}


def _replicates(state: State, members: Sequence[int], name: str) -> Tensor:
    sums = state.tensors["replicates"][:, :, list(members)].sum(-1)
    return sums[:, 1 + MEASURES.index(name)] / sums[:, 0]


def _worst(state: State, cells: Cells, context: Context) -> pd.DataFrame:
    sequences, tokenizer = context.sequences, tokenizer_of(context.lens)
    width = cells.index.shape[-1]
    rows: list[dict[str, object]] = []
    for ranking in RANKINGS:
        ranked = state.tensors[f"worst.{ranking}"].tolist()
        for rank, (_, key, top, reference_top, *values) in enumerate(ranked, start=1):
            sequence, position = divmod(int(key), width)
            ids = sequences.ids[sequence].tolist()
            start = max(0, position + 1 - context.parameters.context_tokens)
            before = [token_string(tokenizer, token) for token in ids[start : position + 1]]
            rows.append(
                {
                    "by": ranking,
                    "rank": rank,
                    "sequence": sequence,
                    "document": sequences.document_ids[int(sequences.document[sequence])],
                    "position": position,
                    "context": "".join(before),
                    "token": token_string(tokenizer, ids[position + 1]),
                    "top": token_string(tokenizer, int(top)),
                    "reference_top": token_string(tokenizer, int(reference_top)),
                    **{
                        name: value
                        for name, value in zip(MEASURES, values, strict=True)
                        if name != "agreement"
                    },
                }
            )
    names = ("by", "rank", "sequence", "document", "position", "context", "token", "top")
    measures = [name for name in MEASURES if name != "agreement"]
    return pd.DataFrame(rows, columns=[*names, "reference_top", *measures])


def _headline(row: pd.Series, replicates: dict[str, Tensor]) -> tuple[Headline, ...]:
    n = int(row["n"])
    found: list[Headline] = []
    for name in BOUNDED:
        unit, doc = DOCS[name]
        low, high = interval(replicates[name])
        found.append(Headline(name, float(row[name]), unit, doc, n, low, high))
    return tuple(found)


def _checks(state: State, context: Context) -> tuple[Check, ...]:
    assert context.reference is not None, "the runner asks for a reference"
    both = (context.lens.placement.dtype, context.reference.placement.dtype)
    tolerance = max(for_dtype("divergence", dtype) for dtype in both)
    lowest, highest = float(state.tensors["lowest"]), float(state.tensors["highest"])
    overflow = float(state.tensors["overflow"][:2].sum())

    def within(name: str, value: float, doc: str) -> Check:
        return Check(name, value, tolerance, value <= tolerance, doc)

    return (
        within(
            "jsd_bounds",
            max(0.0, -lowest, highest - math.log(2)),
            "how far any divergence lies outside [0, ln 2], nats",
        ),
        within(
            "jsd_symmetric",
            max(0.0, float(state.tensors["swapped"])),
            "largest change of a divergence of the first sequences with the models exchanged",
        ),
        within(
            "jsd_of_itself",
            max(0.0, float(state.tensors["itself"])),
            "largest divergence of the model from itself, two passes over the first sequence",
        ),
        Check(
            "finite_logits",
            overflow,
            0.0,
            overflow == 0.0,
            "predictions with a NaN or infinite logit in either model, left out of every number",
        ),
    )


def _warnings(state: State, group: int) -> tuple[str, ...]:
    lost = int(state.tensors["overflow"][group : group + 2].sum())
    if lost == 0:
        return ()
    return (
        f"{lost} predictions have a NaN or infinite logit in one of the two models and are left "
        "out of every number; open both in float32",
    )
