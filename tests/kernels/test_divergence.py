"""``divergence``: the oracle, classes by hand, symmetry, what cannot be compared."""

from __future__ import annotations

import dataclasses
import math
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from normlens import runner
from normlens.capture.statistics import REPLICATES, interval, poisson_weights
from normlens.hooks import hook_count
from normlens.kernels import divergence, predictions
from normlens.kernels.divergence_tokens import compare_predictions
from normlens.kernels.predictions import Targets
from normlens.kernels.token_classes import CONTEXTS, FREQUENCIES, KINDS, contexts, kinds
from normlens.models import Lens, open_model
from normlens.models.identity import weights_sha256
from normlens.results import Result
from normlens.text.encoding import tokenizer_sha256
from normlens.text.sequences import Sequences
from tests.oracles import divergence as oracle
from tests.tiny import VOCABULARY, tiny_gpt2, tiny_llama, tokenizer

LENGTHS, DOCUMENTS = (9, 4, 12, 7, 2), (0, 0, 1, 2, 2)
MEASURES = [
    "jsd",
    "kl_model_reference",
    "kl_reference_model",
    "agreement",
    "loss",
    "reference_loss",
    "delta_loss",
]


@cache
def lens_of(name: str) -> Lens:
    built = {"gpt2": tiny_gpt2, "other": lambda: tiny_gpt2(seed=5), "llama": tiny_llama}[name]()
    return open_model(built, tokenizer=tokenizer(), name=name)


def rows(lengths: tuple[int, ...] = LENGTHS) -> list[list[int]]:
    """Random ids; few different ones, so that tokens and pairs repeat."""
    generator = torch.Generator().manual_seed(4)
    ids = [(13 * torch.randint(5, (n,), generator=generator) + 300).tolist() for n in lengths]
    return [[0, *row[1:]] for row in ids]


def corpus(ids: list[list[int]], documents: tuple[int, ...] = DOCUMENTS, extra: int = 0) -> Any:
    lengths = torch.tensor([len(row) for row in ids])
    table = torch.full((len(ids), int(lengths.max()) + extra), 9)
    for i, row in enumerate(ids):
        table[i, : len(row)] = torch.tensor(row)
    names = tuple(f"book {i}" for i in range(max(documents) + 1))
    digest = tokenizer_sha256(tokenizer())
    return Sequences(table, lengths, torch.tensor(documents), names, "toy", "prepend", 9, digest)


def run(sequences: Sequences, model: str = "gpt2", reference: str = "other", **how: Any) -> Result:
    options = {"batch_size": 2, **how}
    (found,) = runner.run(
        ["divergence"], lens_of(model), sequences, reference=lens_of(reference), **options
    )
    return found


@cache
def scored(model: str, reference: str) -> list[list[dict[str, float]]]:
    """Per sequence and target, by the oracle."""
    found: list[list[dict[str, float]]] = []
    for row in rows():
        with torch.no_grad():
            p, q = (
                lens_of(name).model(input_ids=torch.tensor([row])).logits[0].numpy()
                for name in (model, reference)
            )
        found.append([oracle.compare(p[i], q[i], row[i + 1]) for i in range(len(row) - 1)])
    return found


@pytest.mark.parametrize("model", ["gpt2", "llama"])
def test_equals_the_oracle(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Chunks of three rows and parts of one sequence.
    monkeypatch.setattr(predictions, "CHUNK_ELEMENTS", 3 * VOCABULARY)
    monkeypatch.setattr(divergence, "MOST_LOGITS", 12 * VOCABULARY)
    found = run(corpus(rows(), extra=3), model)
    tokens = scored(model, "other")
    summary = found.tables["summary"].set_index("group")
    chosen = {"all": lambda i: True, "first": lambda i: i == 0, "rest": lambda i: i > 0}
    for group, member in chosen.items():
        values = [t for row in tokens for i, t in enumerate(row) if member(i)]
        assert summary.loc[group, "n"] == len(values)
        for name in MEASURES:
            expected = np.mean([t[name] for t in values])
            assert summary.loc[group, name] == pytest.approx(expected, rel=1e-4, abs=1e-6), name
    weights = poisson_weights(("book 0", "book 1", "book 2"), 0, REPLICATES)[:, list(DOCUMENTS)]
    sums = torch.tensor([sum(t["delta_loss"] for t in row) for row in tokens]).double()
    counts = torch.tensor([float(len(row)) for row in tokens]).double()
    low, high = interval((weights @ sums) / (weights @ counts))
    assert summary.loc["all", "delta_loss_low"] == pytest.approx(low, abs=1e-5)
    assert summary.loc["all", "delta_loss_high"] == pytest.approx(high, abs=1e-5)
    assert found.passed
    assert hook_count(lens_of(model).model) == 0


def test_classes_and_positions_split_all_targets_alike() -> None:
    ids = rows()
    found = run(corpus(ids))
    tokens = scored("gpt2", "other")
    predicted = [row[i + 1] for row in ids for i in range(len(row) - 1)]
    classes = found.tables["classes"].set_index(["partition", "token_class"])
    expected: dict[tuple[str, str], list[float]] = {}
    for row, values in zip(ids, tokens, strict=True):
        for i, value in enumerate(values):
            fifth = FREQUENCIES[oracle.fifth(predicted, row[i + 1])]
            expected.setdefault(("context", oracle.context_class(row, i)), []).append(value["jsd"])
            expected.setdefault(("frequency", fifth), []).append(value["jsd"])
    assert {key[1] for key in expected if key[0] == "context"} == set(CONTEXTS)
    for key, values in expected.items():
        assert classes.loc[key, "n"] == len(values)
        assert classes.loc[key, "jsd"] == pytest.approx(np.mean(values), rel=1e-4)
    for _, part in found.tables["classes"].groupby("partition"):
        assert part["n"].sum() == len(predicted)
    positions = found.tables["positions"]
    assert positions[["low", "high"]].to_numpy().tolist() == [
        [0, 0], [1, 1], [2, 3], [4, 7], [8, 10]
    ]  # fmt: skip
    for _, row in positions.iterrows():
        values = [
            t["jsd"] for s in tokens for i, t in enumerate(s) if row["low"] <= i <= row["high"]
        ]
        assert row["n"] == len(values)
        assert row["jsd"] == pytest.approx(np.mean(values), rel=1e-4)


def test_worst_tokens_are_the_largest_and_keep_their_context() -> None:
    ids = rows()
    found = run(corpus(ids), parameters={"divergence": {"worst": 4, "context_tokens": 3}})
    tokens = scored("gpt2", "other")
    flat = [(t, s, i) for s, row in enumerate(tokens) for i, t in enumerate(row) if i > 0]
    worst = found.tables["worst"].set_index(["by", "rank"])
    for by, key in (
        ("jsd", lambda t: -t["jsd"]),
        ("loss rise", lambda t: -t["delta_loss"]),
        ("loss fall", lambda t: t["delta_loss"]),
    ):
        for rank, (value, s, i) in enumerate(sorted(flat, key=lambda f: key(f[0]))[:4], start=1):
            row = worst.loc[(by, rank)]
            assert (row["sequence"], row["position"]) == (s, i)
            assert row["document"] == f"book {DOCUMENTS[s]}"
            for name in ("jsd", "loss", "delta_loss"):
                assert row[name] == pytest.approx(value[name], rel=1e-3, abs=1e-5)
            text = "".join(tokenizer().convert_ids_to_tokens(ids[s][max(0, i - 2) : i + 1]))
            assert row["context"].strip().replace(" ", "Ġ") == text.strip("Ġ")
            assert row["token"].strip() == tokenizer().decode([ids[s][i + 1]]).strip()


def test_exchanging_the_models_exchanges_the_divergences() -> None:
    one, other = run(corpus(rows())), run(corpus(rows()), "other", "gpt2")
    a, b = (r.tables["summary"].set_index("group").loc["all"] for r in (one, other))
    assert a["jsd"] == pytest.approx(b["jsd"], rel=1e-6)
    assert a["kl_model_reference"] == pytest.approx(b["kl_reference_model"], rel=1e-5)
    assert a["kl_model_reference"] != pytest.approx(a["kl_reference_model"], rel=1e-2)
    assert a["delta_loss"] == pytest.approx(-b["delta_loss"], rel=1e-5)


def test_a_model_is_at_zero_from_its_copy_and_a_nudge_is_not() -> None:
    model = lens_of("gpt2").model
    batch = torch.tensor([rows()[2]])
    with torch.no_grad():
        logits = model(input_ids=batch).logits
    targets = Targets(
        torch.zeros(3, dtype=torch.int64), torch.arange(3), batch[0, 1:4], torch.zeros(3).bool()
    )
    same = compare_predictions(logits, logits.clone(), targets)
    assert same.jsd.abs().max() == 0
    assert same.kl_model_reference.abs().max() == 0
    nudged = logits.clone()
    nudged[..., 5] += 0.5
    assert (compare_predictions(logits, nudged, targets).jsd > 0).all()
    shifted = compare_predictions(logits, logits + 30, targets)
    assert shifted.jsd.abs().max() < 1e-5


def test_disjoint_predictions_are_ln_2_apart() -> None:
    logits = torch.full((1, 2, 8), -60.0)
    other = logits.clone()
    logits[..., 1], other[..., 4] = 0.0, 0.0
    zero = torch.zeros(1, dtype=torch.int64)
    found = compare_predictions(logits, other, Targets(zero, zero, zero + 1, zero.bool()))
    assert float(found.jsd) == pytest.approx(math.log(2), rel=1e-5)
    assert float(found.kl_model_reference) == pytest.approx(60, rel=1e-6)
    assert float(found.agreement) == 0


def test_kinds_depend_on_the_text_and_on_what_stands_before() -> None:
    known = tokenizer()
    text = '"Hello," said Tom the 2nd.\n\nNo 17 — re-entered'
    ids = known(text, add_special_tokens=False)["input_ids"]
    sequences = corpus([[0, *ids]], (0,))
    found = [KINDS[i] for i in kinds(sequences, known)[0].tolist()]
    pieces = [known.decode([i]) for i in ids]
    for i, (piece, kind) in enumerate(zip(pieces, found, strict=True)):
        core = piece.strip()
        if not core:
            assert kind == "whitespace"
        elif "\ufffd" in piece:
            assert kind == "other"
        elif core.isdigit():
            assert kind == "digit"
        elif not any(c.isalnum() for c in core):
            assert kind == "punctuation"
        else:
            joined = i > 0 and pieces[i - 1][-1].isalnum() and not piece[0].isspace()
            assert kind == ("word continuation" if joined else "word start"), piece
    assert {"word start", "word continuation", "punctuation", "whitespace"} <= set(found)
    assert [KINDS[i] for i in kinds(corpus([[300, 0]], (0,)), known)[0].tolist()] == ["special"]


def test_contexts_by_hand() -> None:
    found = contexts(corpus([[1, 2, 1, 2, 3, 2, 2]], (0,)))[0].tolist()
    assert [CONTEXTS[i] for i in found] == [
        "new", "repeated", "induction", "new", "repeated", "repeated"
    ]  # fmt: skip


def test_batches_and_padding_do_not_matter_but_the_mask_does() -> None:
    whole = run(corpus(rows()), batch_size=16).tables["summary"]
    for other in (run(corpus(rows()), batch_size=1), run(corpus(rows(), extra=6), batch_size=3)):
        found = other.tables["summary"]
        pd.testing.assert_frame_equal(found, whole, rtol=1e-4, atol=1e-6)
    unmasked = [row + [9] * (12 - len(row)) for row in rows()]
    assert abs(run(corpus(unmasked)).tables["summary"]["jsd"][0] - whole["jsd"][0]) > 1e-4


def test_overflow_is_counted_and_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = divergence._logits

    def broken(lens: Lens, batch: Any) -> torch.Tensor:
        logits = honest(lens, batch)
        if lens.identity.name == "other" and int(batch.index[0]) == 2:
            logits[0, 1, 3] = math.nan
        return logits

    monkeypatch.setattr(divergence, "_logits", broken)
    found = run(corpus(rows()), fresh=True)
    summary = found.tables["summary"].set_index("group")
    assert summary.loc["rest", "status"] == "overflow"
    assert summary.loc["first", "status"] == "ok"
    assert summary.loc["all", "n"] == sum(LENGTHS) - len(LENGTHS) - 1
    assert np.isfinite(summary.loc["all", MEASURES].astype(float)).all()
    assert not found.passed
    assert "1 predictions" in found.warnings[0]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("tokenizer", "have different tokenizers"),
        ("vocabulary", "4096 logits and other 4100"),
        ("context", "choose a shorter context"),
        ("none", "there is no model to compare"),
        ("itself", "is the reference itself"),
    ],
)
def test_what_cannot_be_compared_is_said_in_words(change: str, reason: str) -> None:
    reference: Lens | None = lens_of("other")
    sequences = corpus(rows())
    match change:
        case "tokenizer":
            sequences = dataclasses.replace(sequences, tokenizer_sha256="another")
        case "vocabulary":
            wider = tiny_gpt2(vocab_size=4100)
            reference = open_model(wider, tokenizer=tokenizer(), name="other")
        case "context":
            short = tiny_gpt2(n_positions=8, seed=3)
            reference = open_model(short, tokenizer=tokenizer(), name="other")
        case "none":
            reference = None
        case _:
            reference = lens_of("gpt2")
    (found,) = runner.run(["divergence"], lens_of("gpt2"), sequences, reference=reference)
    assert reason in found.not_applicable["gpt2"]


def test_a_model_that_changes_between_passes_fails_its_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest, count = divergence._logits, iter(range(100))
    monkeypatch.setattr(
        divergence,
        "_logits",
        lambda lens, batch: honest(lens, batch) * (1 + 0.1 * next(count)),
    )
    found = run(corpus(rows()), fresh=True)
    checks = {check.name: check.passed for check in found.checks["gpt2"]}
    assert not checks["jsd_of_itself"]
    assert checks["jsd_bounds"]


def test_the_models_are_left_as_they_were() -> None:
    run(corpus(rows()))
    for name in ("gpt2", "other"):
        lens = lens_of(name)
        assert weights_sha256(lens.model) == lens.identity.weights_sha256
