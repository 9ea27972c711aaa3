"""``output``: closed forms, the oracle, invariances, overflow."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from normlens.capture.protocol import Observed
from normlens.catalog import Need
from normlens.catalog.output import OutputParameters
from normlens.hooks import hook_count
from normlens.kernels import predictions
from normlens.kernels.output import KERNEL
from normlens.models.lens import Lens
from normlens.text.sequences import Batch
from tests.kernels.harness import (
    VOCABULARY,
    bootstrap,
    context_of,
    lens_of,
    observing,
    random_rows,
    sequences_of,
    stream,
)
from tests.oracles import output as oracle
from tests.tiny import tiny_gpt2, tiny_llama, tokenizer

ROWS, DOCUMENTS = random_rows(1, (9, 4, 12, 7, 2)), [0, 0, 1, 2, 2]
PARAMETERS = OutputParameters(calibration_bins=4, worst=3)


@pytest.fixture(scope="module")
def lens() -> Lens:
    return lens_of(tiny_gpt2(vocab_size=VOCABULARY), tokenizer=tokenizer())


def own_logits(lens: Lens, rows: list[list[int]]) -> list[np.ndarray]:
    with torch.inference_mode():
        return [lens.model(input_ids=torch.tensor([row])).logits[0].numpy() for row in rows]


def summary(lens: Lens, rows: list[list[int]], logits: Tensor | None = None) -> pd.DataFrame:
    """The summary of ``rows``, from the given logits or the model's."""
    context = context_of(lens, PARAMETERS, sequences_of(rows))
    look = observing(lens, Need.LOGITS)
    if logits is not None:
        whole = logits
        # A nested def would be compiled again by the import hook at every call.
        look = lambda batch: Observed(logits=whole[batch.index, : batch.ids.shape[1]])  # noqa: E731 - see above
    return stream(KERNEL, context, look).tables["summary"].set_index("group")


@pytest.mark.parametrize("model", [tiny_gpt2, tiny_llama])
def test_equals_the_oracle(model: type, monkeypatch: pytest.MonkeyPatch) -> None:
    # Chunks of five rows, so that a sequence is spread over several of them.
    monkeypatch.setattr(predictions, "CHUNK_ELEMENTS", 5 * VOCABULARY)
    lens = lens_of(model(vocab_size=VOCABULARY), tokenizer=tokenizer())
    sequences = sequences_of(ROWS, DOCUMENTS, extra=2)
    finding = stream(KERNEL, context_of(lens, PARAMETERS, sequences), observing(lens, Need.LOGITS))
    assert hook_count(lens.model) == 0
    tokens = oracle.score(own_logits(lens, ROWS), ROWS)
    weights = bootstrap(sequences)[:, DOCUMENTS].numpy()
    for _, row in finding.tables["summary"].iterrows():
        expected = oracle.summary(tokens, row["group"], 4, weights)
        for name, value in expected.items():
            assert row[name] == pytest.approx(value, rel=1e-4, abs=1e-6), (row["group"], name)
    for _, row in finding.tables["quantiles"].iterrows():
        expected_quantile = oracle.quantile(tokens, row["quantile"])
        assert row["cross_entropy"] == pytest.approx(expected_quantile, rel=3e-3)
    worst = finding.tables["worst"]
    for (_, row), (sequence, loss) in zip(worst.iterrows(), oracle.worst(tokens), strict=False):
        assert row["sequence"] == sequence
        assert row["cross_entropy"] == pytest.approx(loss, rel=1e-4)
        assert row["n"] == len(ROWS[sequence]) - 1
        assert row["document"] == f"document {DOCUMENTS[sequence]}"
        assert row["text"] == tokenizer().decode(ROWS[sequence], skip_special_tokens=True)
    assert list(worst["rank"]) == [1, 2, 3]
    assert finding.tables["calibration"]["n"].sum() == len(tokens)
    assert all(check.passed for check in finding.checks)
    headline = {h.name: h for h in finding.headline}
    assert headline["cross_entropy"].n == len(tokens)
    assert headline["cross_entropy"].low < headline["cross_entropy"].value


def test_a_target_off_by_one_is_noticed(lens: Lens) -> None:
    right = summary(lens, ROWS).loc["all", "cross_entropy"]
    logits = own_logits(lens, ROWS)
    same_token = [row[1:] + row[-1:] for row in ROWS]
    wrong = oracle.score([np.roll(x, 1, axis=0) for x in logits], ROWS)
    other = oracle.score(logits, same_token)
    for tokens in (wrong, other):
        assert abs(np.mean([t.cross_entropy for t in tokens]) - right) > 1e-2


def test_uniform_logits(lens: Lens) -> None:
    rows = [[0, *range(VOCABULARY)]]
    table = summary(lens, rows, torch.full((1, VOCABULARY + 1, VOCABULARY), 3.0))
    row = table.loc["all"]
    assert row["cross_entropy"] == pytest.approx(math.log(VOCABULARY), rel=1e-6)
    assert row["entropy"] == pytest.approx(math.log(VOCABULARY), rel=1e-6)
    assert row["perplexity"] == pytest.approx(VOCABULARY, rel=1e-5)
    # Every id is once the target and ties go to one of them, so accuracy equals confidence.
    assert row["top1"] == pytest.approx(1 / VOCABULARY)
    assert row["ece"] == pytest.approx(0, abs=1e-7)


def test_certainty_right_and_wrong(lens: Lens) -> None:
    rows = [[3, 5, 7, 9]]
    sure = torch.zeros(1, 4, VOCABULARY)
    sure[0, torch.arange(3), torch.tensor(rows[0][1:])] = 50.0
    right = summary(lens, rows, sure).loc["all"]
    assert right["cross_entropy"] == pytest.approx(0, abs=1e-6)
    assert right["entropy"] == pytest.approx(0, abs=1e-6)
    assert (right["top1"], right["ece"]) == pytest.approx((1.0, 0.0))
    wrong = summary(lens, rows, sure.roll(1, -1)).loc["all"]
    assert wrong["cross_entropy"] == pytest.approx(50, rel=1e-6)
    assert (wrong["top1"], wrong["ece"]) == pytest.approx((0.0, 1.0))


def test_half_precision_is_upcast(lens: Lens) -> None:
    logits = torch.stack([torch.tensor(x[:2]) for x in own_logits(lens, ROWS)]).bfloat16()
    rows = [row[:2] for row in ROWS]
    got = summary(lens, rows, logits).loc["all"]
    tokens = oracle.score([x.float().numpy() for x in logits], rows)
    expected = oracle.summary(tokens, "all", 4, np.ones((1, len(rows))))
    assert got["cross_entropy"] == pytest.approx(expected["cross_entropy"], rel=1e-6)
    assert got["entropy"] == pytest.approx(expected["entropy"], rel=1e-5)


def test_batches_order_and_padding_do_not_matter_but_the_mask_does(lens: Lens) -> None:
    look = observing(lens, Need.LOGITS)

    def tables(
        size: int, *, order: list[int], pad_id: int = 0, extra: int = 0
    ) -> list[pd.DataFrame]:
        sequences = sequences_of(
            [ROWS[i] for i in order], [DOCUMENTS[i] for i in order], pad_id=pad_id, extra=extra
        )
        finding = stream(KERNEL, context_of(lens, PARAMETERS, sequences), look, size=size)
        worst = finding.tables["worst"].drop(columns="sequence")
        return [finding.tables[name] for name in ("summary", "quantiles", "calibration")] + [worst]

    whole = tables(100, order=[0, 1, 2, 3, 4])
    for others in (
        tables(1, order=[0, 1, 2, 3, 4]),
        tables(2, order=[4, 2, 0, 1, 3]),
        tables(3, order=[0, 1, 2, 3, 4], pad_id=7, extra=9),
    ):
        for other, table in zip(others, whole, strict=True):
            pd.testing.assert_frame_equal(other, table, rtol=1e-4)
    unmasked = summary(lens, [row + [0] * (12 - len(row)) for row in ROWS])
    gap = unmasked.loc["all", "cross_entropy"] - whole[0].loc[0, "cross_entropy"]
    assert abs(gap) > 1e-2


def test_rows_per_token(lens: Lens) -> None:
    parameters = OutputParameters(per_token=True)
    context = context_of(lens, parameters, sequences_of(ROWS))
    tokens = stream(KERNEL, context, observing(lens, Need.LOGITS)).tables["tokens"]
    expected = oracle.score(own_logits(lens, ROWS), ROWS)
    assert list(tokens["sequence"]) == [t.sequence for t in expected]
    assert list(tokens["position"]) == [t.position for t in expected]
    assert list(tokens["token"]) == [ROWS[t.sequence][t.position] for t in expected]
    for name in ("cross_entropy", "entropy"):
        want = [getattr(t, name) for t in expected]
        assert tokens[name].to_numpy() == pytest.approx(np.array(want), rel=1e-4)


def test_no_data_is_nan(lens: Lens) -> None:
    context = context_of(lens, PARAMETERS, sequences_of([[1], [2]]))
    finding = stream(KERNEL, context, observing(lens, Need.LOGITS))
    table = finding.tables["summary"]
    assert (table["n"] == 0).all()
    assert table.drop(columns=["group", "n", "status"]).isna().all(axis=None)
    assert (table["status"] == "no_data").all()
    assert finding.tables["quantiles"]["cross_entropy"].isna().all()
    assert len(finding.tables["worst"]) == 0
    assert all(h.n == 0 and math.isnan(h.value) for h in finding.headline)
    assert all(check.passed for check in finding.checks)


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_overflow_is_a_status_and_not_an_average(lens: Lens, bad: float) -> None:
    rows = [[1, 2, 3, 4], [4, 3, 2, 1]]
    logits = torch.randn(2, 4, VOCABULARY, generator=torch.Generator().manual_seed(0)).half()
    clean = summary(lens, [rows[1]], logits[1:])
    logits[0, :, 7] = bad
    context = context_of(lens, PARAMETERS, sequences_of(rows))

    def look(batch: Batch) -> Observed:
        return Observed(logits=logits[batch.index])

    finding = stream(KERNEL, context, look)
    table = finding.tables["summary"].set_index("group")
    assert (table["status"] == "overflow").all()
    assert table["n"].to_dict() == {"all": 3, "rest": 2, "first": 1}
    for name in ("cross_entropy", "entropy", "ece", "top1"):
        assert table.loc["all", name] == pytest.approx(clean.loc["all", name], rel=1e-6)
    failed = [check for check in finding.checks if not check.passed]
    assert [check.name for check in failed] == ["finite_logits"]
    assert failed[0].value == 3
    assert finding.warnings[0].startswith("3 predictions")


def test_without_a_tokenizer_the_worst_sequences_show_ids() -> None:
    bare = lens_of(tiny_gpt2(vocab_size=VOCABULARY))
    context = context_of(bare, PARAMETERS, sequences_of([[4, 2, 9]]))
    worst = stream(KERNEL, context, observing(bare, Need.LOGITS)).tables["worst"]
    assert worst.loc[0, "text"] == "4 2 9"


def test_an_entropy_above_that_of_the_uniform_distribution_fails_the_check() -> None:
    lens = lens_of(tiny_gpt2(vocab_size=VOCABULARY))
    context = context_of(lens, PARAMETERS, sequences_of(ROWS))
    lens.model.config.vocab_size = 3
    checks = {c.name: c for c in stream(KERNEL, context, observing(lens, Need.LOGITS)).checks}
    assert not checks["entropy_bounds"].passed
    assert checks["finite_logits"].passed
