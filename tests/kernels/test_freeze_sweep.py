"""``freeze-sweep``: measured by replacing modules, closed forms, invariances."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import GPT2LMHeadModel

from normlens.capture.statistics import interval
from normlens.catalog.freeze_sweep import FreezeSweepParameters
from normlens.errors import NotApplicable
from normlens.hooks import hook_count
from normlens.kernels import freeze_sweep
from normlens.kernels.freeze_sweep import KERNEL
from normlens.kernels.freezing import freeze_hooks, removal_order
from normlens.models.identity import weights_sha256
from tests.kernels.harness import (
    VOCABULARY,
    bootstrap,
    context_of,
    cut,
    lens_of,
    proceed,
    random_rows,
    sequences_of,
)
from tests.oracles import freeze_sweep as oracle
from tests.tiny import EPS, tiny_fixed_scale, tiny_gpt2, tiny_llama

ROWS, DOCUMENTS = random_rows(2, (9, 4, 12, 7, 2)), [0, 0, 1, 2, 2]
MEASURES = ["n", "loss", "delta_loss", "delta_low", "delta_high", "kl"]
GPT2_ORDER = [
    ("0.pre_mlp", "transformer.h.0.ln_2"),
    ("1.pre_mlp", "transformer.h.1.ln_2"),
    ("0.pre_attn", "transformer.h.0.ln_1"),
    ("1.pre_attn", "transformer.h.1.ln_1"),
    ("final", "transformer.ln_f"),
]
LLAMA_ORDER = [
    ("0.pre_mlp", "model.layers.0.post_attention_layernorm"),
    ("1.pre_mlp", "model.layers.1.post_attention_layernorm"),
    ("0.pre_attn", "model.layers.0.input_layernorm"),
    ("1.pre_attn", "model.layers.1.input_layernorm"),
    ("final", "model.norm"),
]


def sweep(model: Any, **corpus: Any) -> pd.DataFrame:
    given = {"rows": ROWS, "documents": DOCUMENTS, **corpus}
    size = given.pop("size", 2)
    context = context_of(lens_of(model), FreezeSweepParameters(), sequences_of(**given))
    return proceed(KERNEL, context, size=size).tables["sweep"].set_index(["mode", "step"])


@pytest.mark.parametrize(
    ("build", "order", "centred"),
    [(tiny_gpt2, GPT2_ORDER, True), (tiny_llama, LLAMA_ORDER, False)],
)
def test_equals_replacing_the_modules(
    build: Any, order: list[tuple[str, str]], centred: bool
) -> None:
    model = build(vocab_size=VOCABULARY)
    digest = weights_sha256(model)
    lens = lens_of(model)
    sequences = sequences_of(ROWS, DOCUMENTS, extra=2)
    finding = proceed(KERNEL, context_of(lens, FreezeSweepParameters(), sequences))
    assert hook_count(model) == 0
    assert weights_sha256(model) == digest
    table = finding.tables["sweep"].set_index(["mode", "step"])
    exact = copy.deepcopy(model).double()
    scales = {path: oracle.mean_scales(exact, path, centred, EPS, ROWS) for _label, path in order}
    weights = bootstrap(sequences)[:, DOCUMENTS]
    for step, (label, path) in enumerate(order, start=1):
        before = {p: scales[p] for _, p in order[:step]}
        for mode, frozen in (("single", {path: scales[path]}), ("cumulative", before)):
            row = table.loc[(mode, step)]
            values = oracle.losses(exact, oracle.freeze(exact, frozen, centred), ROWS)
            loss, intact, kl = (torch.cat(values[key]) for key in ("frozen", "intact", "kl"))
            delta = torch.stack(
                [f.sum() - i.sum() for f, i in zip(values["frozen"], values["intact"], strict=True)]
            )
            counts = torch.tensor([float(len(v)) for v in values["kl"]]).double()
            low, high = interval((weights @ delta) / (weights @ counts))
            expected = (len(loss), loss.mean(), (loss - intact).mean(), low, high, kl.mean())
            assert row["site"] == label
            for name, value in zip(MEASURES, expected, strict=True):
                assert row[name] == pytest.approx(float(value), rel=2e-4, abs=2e-5), (
                    mode,
                    step,
                    name,
                )
            assert row["frozen_scale_first"] == pytest.approx(scales[path][0], rel=1e-5)
            assert row["frozen_scale"] == pytest.approx(scales[path][1], rel=1e-5)
            assert row["kl"] > 1e-4
    headline = {h.name: h for h in finding.headline}
    last = table.loc[("cumulative", 5)]
    assert headline["delta_all_frozen"].value == last["delta_loss"]
    assert headline["kl_all_frozen"].value == last["kl"]
    singles = table.loc["single", "delta_loss"]
    assert headline["delta_largest_single"].value == singles.max()
    assert (
        str(table.loc["single"].loc[singles.idxmax(), "site"])
        in headline["delta_largest_single"].doc
    )
    assert all(check.passed for check in finding.checks)


def test_a_model_with_a_constant_scale_loses_nothing_and_another_does() -> None:
    model = tiny_gpt2(vocab_size=VOCABULARY)
    with torch.no_grad():
        for block in model.transformer.h:
            for projection in (block.attn.c_proj, block.mlp.c_proj):
                projection.weight.zero_()
                projection.bias.zero_()
        model.transformer.wpe.weight.zero_()
        varied = copy.deepcopy(model)
        rows = model.transformer.wte.weight
        centred = rows - rows.mean(-1, keepdim=True)
        rows.copy_(0.3 + 2 * centred / centred.square().mean(-1, keepdim=True).sqrt())
    constant = sweep(model)
    assert constant["frozen_scale"].to_numpy() == pytest.approx((4 + EPS) ** 0.5, rel=1e-5)
    assert constant["delta_loss"].abs().max() < 1e-5
    assert constant["kl"].abs().max() < 1e-5
    # Only the final norm reaches the logits of this model.
    other = sweep(varied)
    assert other.loc[("single", 5), "kl"] > 1e-3
    assert other.loc[("single", 4), "kl"] < 1e-5


def test_first_tokens_are_frozen_apart() -> None:
    """A first token with a large scale of its own would spoil a common mean."""
    model = tiny_gpt2(vocab_size=VOCABULARY)
    with torch.no_grad():
        model.transformer.wpe.weight[0] *= 20
    table = sweep(model)
    ratio = table["frozen_scale_first"] / table["frozen_scale"]
    assert ratio.loc["single"].loc[3] > 5


def test_batches_order_and_padding_do_not_matter_but_the_mask_does() -> None:
    model = tiny_gpt2(vocab_size=VOCABULARY)
    whole = sweep(model, size=100)
    order = [4, 2, 0, 1, 3]
    shuffled = {"rows": [ROWS[i] for i in order], "documents": [DOCUMENTS[i] for i in order]}
    for other in (
        sweep(model, size=1),
        sweep(model, **shuffled),
        sweep(model, size=3, pad_id=7, extra=9),
    ):
        pd.testing.assert_frame_equal(other[MEASURES], whole[MEASURES], rtol=1e-3, atol=1e-5)
    unmasked = sweep(model, rows=[row + [0] * (12 - len(row)) for row in ROWS])
    assert (unmasked["loss"] - whole["loss"]).abs().min() > 1e-3


def test_freezing_to_the_live_scale_is_the_identity_and_to_another_is_not() -> None:
    lens = lens_of(tiny_gpt2(vocab_size=VOCABULARY))
    batch = cut(sequences_of(ROWS), 3)[0]
    live = freeze_sweep._live_scales(lens, lens.sites, batch)
    intact = freeze_sweep._logits(lens, batch, {})
    same = freeze_sweep._logits(lens, batch, live)
    bound = 1e-5 * intact.abs().max()
    assert (same - intact).abs().max() <= bound
    for site in lens.sites:
        other = {**live, site: live[site] * 1.01}
        moved = (freeze_sweep._logits(lens, batch, other) - intact).abs().max()
        assert moved > bound, site.label


def test_a_wrong_live_scale_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = freeze_sweep._live_scales
    monkeypatch.setattr(
        freeze_sweep,
        "_live_scales",
        lambda *args: {site: scale + 0.01 for site, scale in honest(*args).items()},
    )
    context = context_of(
        lens_of(tiny_gpt2(vocab_size=VOCABULARY)), FreezeSweepParameters(), sequences_of(ROWS)
    )
    (check,) = proceed(KERNEL, context).checks
    assert not check.passed


def test_number_of_forward_passes_and_of_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    lens = lens_of(tiny_gpt2(vocab_size=VOCABULARY))
    seen: list[int] = []
    honest = freeze_sweep._logits

    def counting(lens: Any, batch: Any, scales: Any) -> torch.Tensor:
        seen.append(len(batch.ids))
        return honest(lens, batch, scales)

    monkeypatch.setattr(freeze_sweep, "_logits", counting)
    context = context_of(lens, FreezeSweepParameters(sequences=3), sequences_of(ROWS))
    table = proceed(KERNEL, context, size=100).tables["sweep"]
    # Intact, five single, four more cumulative; two on one sequence for the check.
    assert seen == [3] * 10 + [1] * 2
    assert (table["n"] == sum(len(ROWS[i]) - 1 for i in (0, 2, 4))).all()


def test_hooks_are_gone_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    lens = lens_of(tiny_gpt2(vocab_size=VOCABULARY))

    def broken(*_args: Any) -> None:
        assert hook_count(lens.model) > 0
        raise RuntimeError("stop")

    monkeypatch.setattr(freeze_sweep, "run_model", lambda *_a, **_k: broken())
    monkeypatch.setattr(
        freeze_sweep,
        "freeze_hooks",
        lambda lens, _s: freeze_hooks(lens, {lens.sites[0]: torch.ones(1, 1)}),
    )
    with pytest.raises(RuntimeError, match="stop"):
        proceed(KERNEL, context_of(lens, FreezeSweepParameters(), sequences_of(ROWS)))
    assert hook_count(lens.model) == 0


def test_no_data_is_nan() -> None:
    table = sweep(tiny_gpt2(vocab_size=VOCABULARY), rows=[[1], [2]], documents=[0, 1])
    assert (table["n"] == 0).all()
    assert table[[*MEASURES[1:], "frozen_scale", "frozen_scale_first"]].isna().all(axis=None)
    assert (table["status"] == "no_data").all()


def test_overflow_is_a_status_and_not_an_average(monkeypatch: pytest.MonkeyPatch) -> None:
    lens = lens_of(tiny_gpt2(vocab_size=VOCABULARY))
    honest = freeze_sweep._logits

    def overflowing(lens: Any, ids: torch.Tensor, scales: Any) -> torch.Tensor:
        logits = honest(lens, ids, scales)
        if {site.label for site in scales} == {"final"}:
            logits[0, 1, 3] = math.inf
        return logits

    monkeypatch.setattr(freeze_sweep, "_logits", overflowing)
    context = context_of(lens, FreezeSweepParameters(), sequences_of(ROWS))
    finding = proceed(KERNEL, context, size=5)
    table = finding.tables["sweep"].set_index(["mode", "step"])
    row = table.loc[("single", 5)]
    assert row["status"] == "overflow"
    assert row["n"] == table.loc[("single", 1), "n"] - 1
    assert np.isfinite(row[["loss", "delta_loss", "kl"]].astype(float)).all()
    assert (table.drop(("single", 5))["status"] == "ok").all()
    assert "single freeze at final" in finding.warnings[0]


def test_scale_free_models_have_nothing_to_freeze() -> None:
    lens = lens_of(tiny_fixed_scale(vocab_size=VOCABULARY), "smooth")
    with pytest.raises(NotApplicable, match="every norm of smooth is scale-free already"):
        proceed(KERNEL, context_of(lens, FreezeSweepParameters(), sequences_of(ROWS)))


def test_only_live_sites_are_swept_in_removal_order() -> None:
    model: GPT2LMHeadModel = tiny_gpt2(vocab_size=VOCABULARY)
    fixed = tiny_fixed_scale(vocab_size=VOCABULARY)
    model.set_submodule("transformer.h.0.ln_2", fixed.get_submodule("transformer.h.0.ln_2"))
    labels = [site.label for site in removal_order(lens_of(model).sites)]
    assert labels == ["1.pre_mlp", "0.pre_attn", "1.pre_attn", "final"]
