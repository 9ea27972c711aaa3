from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from normlens.capture.protocol import Context, Finding
from normlens.capture.state import State
from normlens.catalog.logit_attribution import LOGIT_ATTRIBUTION, LogitAttributionParameters
from normlens.errors import ComponentMismatch, NotApplicable, UsageError
from normlens.kernels.logit_attribution import KERNEL
from normlens.models.components_scaling import Scaling
from normlens.models.lens import Lens
from normlens.norms.spec import NormKind
from normlens.text import BosPolicy
from normlens.text.sequences import Sequences
from tests.kernels.attribution_models import (
    MODELS,
    REPLICATES,
    batches_of,
    context_of,
    lens_of,
    observe,
    sequences,
    vectors,
)
from tests.oracles import direct_effect as oracle
from tests.oracles import golden_nmae

LENGTHS = [9, 12, 2, 7, 12, 5]
DEFAULT = LogitAttributionParameters()
GOLDEN = LogitAttributionParameters(mode="golden")


def run(
    lens: Lens, corpus: Sequences, parameters: LogitAttributionParameters, size: int = 3
) -> tuple[State, Context]:
    context = context_of(lens, corpus, parameters)
    total = KERNEL.init(context)
    for batch in batches_of(corpus, size):
        shard = KERNEL.init(context)
        KERNEL.update(shard, batch, observe(lens, batch.ids), context)
        total.merge(shard)
    return total, context


def finding(
    lens: Lens, corpus: Sequences, parameters: LogitAttributionParameters, size: int = 3
) -> Finding:
    return KERNEL.finish(*run(lens, corpus, parameters, size))


def naive(lens: Lens, corpus: Sequences) -> dict[str, tuple[Tensor, Tensor]]:
    """DLA and DE of every counted token, one component after the other."""
    weights = context_of(lens, corpus, DEFAULT).weights
    assert weights is not None
    spec = weights.final.spec
    norm = oracle.Norm(
        spec.kind.value, spec.eps or 0.0, spec.fixed_scale or 1.0, weights.gamma, weights.beta
    )
    out: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for row, length in zip(corpus.ids, corpus.lengths.tolist(), strict=True):
        components = observe(lens, row[None, :length]).components
        assert components is not None
        for name, c in vectors(components, weights).items():
            dla, effect = oracle.effects(
                c, components.residual.double(), norm, weights.w_u.double(), None,
                row[None, :length].roll(-1, 1),
            )  # fmt: skip
            kept = slice(1, length - 1)
            out.setdefault(name, []).append((dla[0, kept], effect[0, kept]))
    return {
        name: (torch.cat([d for d, _ in pairs]), torch.cat([e for _, e in pairs]))
        for name, pairs in out.items()
    }


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm", "fixed_scale"])
def test_default_mode_equals_the_oracle(name: str) -> None:
    lens, corpus = lens_of(MODELS[name]().double()), sequences(LENGTHS)
    found = finding(lens, corpus, DEFAULT)
    table = found.tables["components"].set_index("component")
    rows: dict[str, dict[str, float]] = table.to_dict("index")  # pyright: ignore[reportAssignmentType]
    expected = naive(lens, corpus)
    assert sorted(rows) == sorted(expected)
    for component, (dla, effect) in expected.items():
        row = rows[component]
        error = (dla - effect).abs()
        assert row["n"] == len(dla) == sum(max(n - 2, 0) for n in LENGTHS)
        assert row["dla"] == pytest.approx(float(dla.mean()), abs=1e-11)
        assert row["direct_effect"] == pytest.approx(float(effect.mean()), abs=1e-11)
        assert row["self_repair"] == pytest.approx(float((effect - dla).mean()), abs=1e-11)
        assert row["mean_abs_error"] == pytest.approx(float(error.mean()), abs=1e-11)
        assert row["mean_abs_effect"] == pytest.approx(float(effect.abs().mean()), abs=1e-11)
        assert row["nmae"] == pytest.approx(float(error.mean() / effect.abs().mean()), abs=1e-10)
    assert [check.passed for check in found.checks] == [True]
    heads = table[table["type"] == "head"]
    groups = found.tables["groups"].set_index("type")
    assert groups.loc["head", "components"] == len(heads) == 8
    assert groups.loc["head", "nmae"] == pytest.approx(heads["nmae"].mean(), abs=1e-12)
    pooled = heads["mean_abs_error"].sum() / heads["mean_abs_effect"].sum()
    assert groups.loc["head", "nmae_pooled"] == pytest.approx(pooled, abs=1e-12)
    assert groups.loc["head", "nmae_max"] == heads["nmae"].max()
    headline = {h.name: h.value for h in found.headline}
    assert headline["nmae_heads"] == groups.loc["head", "nmae"]
    assert headline["nmae_heads_min"] == heads["nmae"].min()
    if name == "fixed_scale":
        assert headline["nmae_heads"] == headline["nmae_heads_max"] == 0.0
    else:
        assert headline["nmae_heads_min"] > 0.01


def test_tables_are_as_declared() -> None:
    lens = lens_of(MODELS["layer_norm"]())
    policies: tuple[BosPolicy, BosPolicy] = ("prepend", "none")
    for parameters, bos in zip((DEFAULT, GOLDEN), policies, strict=True):
        found = finding(lens, sequences(LENGTHS, bos=bos), parameters)
        for schema in LOGIT_ATTRIBUTION.tables:
            assert list(found.tables[schema.name]) == [c.name for c in schema.columns]


@pytest.mark.parametrize("mode", ["default", "golden"])
def test_splits_order_and_padding_change_nothing(mode: str) -> None:
    lens = lens_of(MODELS["layer_norm"]().double())
    parameters = DEFAULT if mode == "default" else GOLDEN
    corpus = sequences(LENGTHS, bos="none")
    whole, _ = run(lens, corpus, parameters, size=6)
    parts, _ = run(lens, corpus, parameters, size=1)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    shuffled, _ = run(lens, corpus.select(order), parameters, size=2)
    longer = replace(corpus, ids=torch.nn.functional.pad(corpus.ids, (0, 5), value=23))
    padded, _ = run(lens, longer, parameters, size=6)
    for name, value in whole.tensors.items():
        by_sequence = mode == "golden" and name in ("dla", "repair")
        torch.testing.assert_close(parts.tensors[name], value)
        torch.testing.assert_close(padded.tensors[name], value)
        expected = value[order] if by_sequence else value
        torch.testing.assert_close(shuffled.tensors[name], expected)


def test_replicates_reweight_documents() -> None:
    lens, corpus = lens_of(MODELS["layer_norm"]().double()), sequences(LENGTHS)
    found = finding(lens, corpus, DEFAULT)
    assert found.replicates["nmae_heads"].shape == (REPLICATES,)
    weights = torch.cat([batch.weights for batch in batches_of(corpus, 6)], 1)
    expected = []
    alone = [naive(lens, corpus.select(torch.tensor([i]))) for i in range(len(corpus))]
    heads = [name for name in alone[0] if ".H" in name]
    for times in weights:
        nmae = []
        for head in heads:
            pairs = list(zip(times.tolist(), [a[head] for a in alone], strict=True))
            error = sum(w * float((dla - de).abs().sum()) for w, (dla, de) in pairs)
            effect = sum(w * float(de.abs().sum()) for w, (_, de) in pairs)
            nmae.append(error / effect if effect else math.nan)
        expected.append(float(np.mean(nmae)))
    torch.testing.assert_close(
        found.replicates["nmae_heads"], torch.tensor(expected).double(),
        rtol=1e-6, atol=1e-9, equal_nan=True,
    )  # fmt: skip
    headline = found.headline[0]
    assert headline.low < headline.value < headline.high


@pytest.mark.parametrize("name", ["layer_norm", "fixed_scale"])
def test_golden_mode_equals_the_published_procedure(name: str) -> None:
    lens, corpus = lens_of(MODELS[name]().double()), sequences(LENGTHS, bos="none")
    found = finding(lens, corpus, GOLDEN)
    context = context_of(lens, corpus, GOLDEN)
    weights = context.weights
    assert weights is not None and weights.gamma is not None
    residual, heads, tokens = [], [], []
    for row, length in zip(corpus.ids, corpus.lengths.tolist(), strict=True):
        components = observe(lens, row[None, :length]).components
        assert components is not None
        residual.append(components.residual[0, -1].numpy())
        parts = vectors(components, weights)
        heads.append([c[0, -1].numpy() for name, c in parts.items() if ".H" in name])
        tokens.append(int(row[length - 1]))
    spec = weights.final.spec
    dla, direct = golden_nmae.effects_of_heads(
        np.stack(residual), np.stack([np.stack(h) for h in heads], 1), np.array(tokens),
        weights.gamma.numpy(), weights.w_u.numpy(), eps=spec.eps or 0.0, constant=spec.fixed_scale,
    )  # fmt: skip
    headline = found.headline[0]
    assert headline.value == pytest.approx(golden_nmae.nmae(dla, direct), abs=1e-10)
    assert headline.n == len(LENGTHS)
    table = found.tables["components"].set_index("component")
    rows = [n for n in table.index if ".H" in n]
    np.testing.assert_allclose(table.loc[rows, "dla"], dla.mean(1), atol=1e-11)
    np.testing.assert_allclose(table.loc[rows, "direct_effect"], direct.mean(1), atol=1e-11)
    if name == "fixed_scale":
        assert headline.value == headline.high == 0.0
        return
    assert headline.value > 0.01
    context = replace(context, replicates=400)
    state, _ = run(lens, corpus, GOLDEN)
    ours = KERNEL.finish(state, context).headline[0]
    low, high = golden_nmae.interval(dla, direct, 2000, seed=3)
    assert ours.low == pytest.approx(low, rel=0.2)
    assert ours.high == pytest.approx(high, rel=0.2)


def test_modes_differ() -> None:
    """Golden mode reads another position and another token than the default mode."""
    lens, corpus = lens_of(MODELS["layer_norm"]()), sequences(LENGTHS, bos="none")
    golden, default = (finding(lens, corpus, p).headline[0].value for p in (GOLDEN, DEFAULT))
    assert abs(golden - default) > 1e-3


def test_golden_mode_refuses_bos() -> None:
    lens = lens_of(MODELS["layer_norm"]())
    with pytest.raises(UsageError, match="--bos none"):
        KERNEL.init(context_of(lens, sequences(LENGTHS), GOLDEN))


@pytest.mark.parametrize("mode", ["default", "golden"])
def test_a_wrong_gain_fails_the_check(mode: str) -> None:
    lens = lens_of(MODELS["layer_norm"]())
    parameters = DEFAULT if mode == "default" else GOLDEN
    corpus = sequences(LENGTHS, bos="none")
    context = context_of(lens, corpus, parameters)
    assert context.weights is not None
    context = replace(context, weights=replace(context.weights, gamma=None))
    state = KERNEL.init(context)
    for batch in batches_of(corpus, 6):
        KERNEL.update(state, batch, observe(lens, batch.ids), context)
    (check,) = KERNEL.finish(state, context).checks
    assert not check.passed and check.value > 1e-2


def test_sequences_too_short_to_count_give_no_data() -> None:
    lens = lens_of(MODELS["rms_norm"]())
    found = finding(lens, sequences([2, 2]), DEFAULT)
    assert (found.tables["components"]["n"] == 0).all()
    assert found.tables["components"]["nmae"].isna().all()
    headline = found.headline[0]
    assert headline.n == 0 and math.isnan(headline.value) and math.isnan(headline.low)
    assert [check.passed for check in found.checks] == [True]


def test_models_without_a_position_embedding_have_no_row_for_it() -> None:
    lens = lens_of(MODELS["rms_norm"]())
    table = finding(lens, sequences(LENGTHS), DEFAULT).tables["components"]
    assert list(table["component"])[:2] == ["embed", "L0.H0"]
    assert "attn_bias" not in set(table["type"])
    assert table["layer"].dtype == table["head"].dtype == "Int64"


def test_refuses_models_it_cannot_attribute() -> None:
    lens, corpus = lens_of(MODELS["rms_norm"]()), sequences(LENGTHS)
    context = context_of(lens, corpus, DEFAULT)
    assert context.weights is not None
    final = context.weights.final
    opaque = replace(final, spec=replace(final.spec, kind=NormKind.OPAQUE))
    with pytest.raises(NotApplicable, match="opaque"):
        KERNEL.init(replace(context, weights=replace(context.weights, final=opaque)))
    with pytest.raises(NotApplicable, match="component view"):
        KERNEL.init(replace(context, weights=None))


def test_refuses_logits_that_are_not_raw() -> None:
    lens, corpus = lens_of(MODELS["rms_norm"]()), sequences(LENGTHS)
    context = context_of(lens, corpus, DEFAULT)
    assert context.weights is not None
    (batch,) = batches_of(corpus, 6)
    capped = replace(context, weights=replace(context.weights, scaling=Scaling(softcap=3.0)))
    with pytest.raises(ComponentMismatch, match="no raw logits"):
        KERNEL.update(KERNEL.init(context), batch, observe(lens, batch.ids), capped)


def test_refuses_embeddings_it_does_not_know() -> None:
    lens, corpus = lens_of(MODELS["rms_norm"]()), sequences(LENGTHS)
    context = context_of(lens, corpus, DEFAULT)
    (batch,) = batches_of(corpus, 6)
    observed = observe(lens, batch.ids)
    assert observed.components is not None
    odd = replace(observed.components, embeddings={"embed.2": observed.components.residual})
    with pytest.raises(ComponentMismatch, match=r"embed\.2"):
        KERNEL.update(KERNEL.init(context), batch, replace(observed, components=odd), context)
