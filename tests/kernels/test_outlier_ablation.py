"""``outlier-ablation``: closed forms on planted models, sinks by the model's own attention."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from transformers import GPT2LMHeadModel, LlamaForCausalLM, PreTrainedModel

from normlens.capture.protocol import Finding
from normlens.catalog.declaration import Extent
from normlens.catalog.outlier_ablation import OUTLIER_ABLATION, OutlierAblationParameters
from normlens.hooks import hook_count
from normlens.kernels.outlier_ablation import KERNEL
from normlens.kernels.outlier_interventions import random_dimensions
from normlens.models.identity import weights_sha256
from tests import planted
from tests.kernels.harness import (
    VOCABULARY,
    context_of,
    lens_of,
    proceed,
    random_rows,
    sequences_of,
)
from tests.tiny import EPS, tiny_fixed_scale, tiny_gpt2, tiny_llama

ROWS = [[7, 1, 2, 3, 4, 9], [1, 9, 7, 5, 11], [7, 8, 7, 2, 6, 6, 12]]


def ablated(model: PreTrainedModel, rows: list[list[int]] = ROWS, **parameters: Any) -> Finding:
    chosen = OutlierAblationParameters(**{"sink_tokens": 4, **parameters})
    before = weights_sha256(model)
    finding = proceed(KERNEL, context_of(lens_of(model), chosen, sequences_of(rows, extra=2)))
    assert hook_count(model) == 0
    assert weights_sha256(model) == before
    return finding


def effects(finding: Finding) -> pd.DataFrame:
    return finding.tables["effects"].set_index(["what", "how", "chosen"]).sort_index()


def one(finding: Finding, what: str, how: str) -> pd.Series:
    """The row of the outliers."""
    table = finding.tables["effects"]
    chosen = (table["what"] == what) & (table["how"] == how) & (table["chosen"] == "outlier")
    (row,) = [row for _, row in table[chosen].iterrows()]
    return row


def final_loss(model: PreTrainedModel, residuals: list[torch.Tensor]) -> float:
    """Mean loss of models whose last residual is known, in float64."""
    assert isinstance(model, (GPT2LMHeadModel, LlamaForCausalLM))
    losses: list[float] = []
    for row, x in zip(ROWS, residuals, strict=True):
        if isinstance(model, GPT2LMHeadModel):
            norm = model.transformer.ln_f
            y = F.layer_norm(x, (x.shape[1],), norm.weight.double(), norm.bias.double(), EPS)
        else:
            y = x / (x.square().mean(-1, keepdim=True) + EPS).sqrt()
            y = y * model.model.norm.weight.double()
        logits = y @ model.lm_head.weight.double().T
        losses += F.cross_entropy(logits[:-1], torch.tensor(row[1:]), reduction="none").tolist()
    return float(np.mean(losses))


@pytest.mark.parametrize("kind", planted.KINDS)
def test_setting_a_planted_activation_has_its_closed_form_effect(kind: str) -> None:
    plant = planted.massive(kind)
    finding = ablated(plant.model, random_seeds=1)
    intact = [plant.residual(row, planted.LAYERS) for row in ROWS]
    zeroed = [x.clone() for x in intact]
    for row, x in zip(ROWS, zeroed, strict=True):
        x[torch.tensor(row) == planted.SPIKE, planted.ROW] = 0
    expected = final_loss(plant.model, zeroed) - final_loss(plant.model, intact)
    assert abs(expected) > 0.05
    row = one(finding, "massive", "zero")
    assert row["delta_loss"] == pytest.approx(expected, rel=1e-3)
    assert row["loss"] == pytest.approx(final_loss(plant.model, zeroed), rel=1e-4)
    assert row["dimensions"] == str(planted.ROW)
    assert row["target"] == f"massive; dimension {planted.ROW} at depth {planted.LAYER + 1}"
    assert row["n"] == sum(len(r) - 1 for r in ROWS)
    for name, chosen in (("drift", slice(1, None)), ("drift_first", slice(0, 1))):
        before, after = (
            float(torch.cat([x[chosen].norm(dim=-1) for x in xs]).mean()) for xs in (intact, zeroed)
        )
        assert row[name] == pytest.approx(after / before, rel=1e-4)
    # Every spike has the same value, so its mean changes nothing.
    same = one(finding, "massive", "mean")
    assert same["delta_loss"] == pytest.approx(0, abs=1e-5)
    assert same["drift"] == pytest.approx(1, rel=1e-5)
    assert "is no test" in " ".join(finding.warnings)
    headline = {h.name: h.value for h in finding.headline}
    assert headline["delta_massive_zero"] == pytest.approx(expected, rel=1e-3)
    assert all(check.passed for check in finding.checks)


@pytest.mark.parametrize("kind", planted.KINDS)
def test_zeroing_dimensions_has_its_closed_form_effect(kind: str) -> None:
    plant = planted.outlier_dimension(kind)
    finding = ablated(plant.model, random_seeds=2, dimensions=1, threshold=5.0)
    table = effects(finding)
    assert (table.loc[("dimensions", "residual"), "seed"].isna()).sum() == 1
    intact = [plant.residual(row, planted.LAYERS) for row in ROWS]

    def expected(dimensions: tuple[int, ...]) -> float:
        changed = [x.clone() for x in intact]
        for x in changed:
            x[:, list(dimensions)] = 0
        return final_loss(plant.model, changed) - final_loss(plant.model, intact)

    row = one(finding, "dimensions", "residual")
    assert row["dimensions"] == str(planted.ROW)
    assert row["target"] == "outlier dimensions (relative)"
    assert row["delta_loss"] == pytest.approx(expected((planted.ROW,)), rel=1e-3)
    for seed, other in table.loc[("dimensions", "residual", "random")].set_index("seed").iterrows():
        drawn = random_dimensions((planted.ROW,), planted.WIDTH, int(str(seed)))
        assert other["dimensions"] == str(drawn[0])
        assert other["delta_loss"] == pytest.approx(expected(drawn), rel=1e-2, abs=1e-4)
    # The blocks write nothing, so what their norms hand them makes no difference.
    at_norms = table.loc[("dimensions", "norm_output")]
    assert at_norms["delta_loss"].to_numpy() == pytest.approx(0, abs=1e-6)
    assert at_norms["drift"].to_numpy() == pytest.approx(1)


def test_ablations_of_norm_outputs_reach_the_blocks() -> None:
    finding = ablated(tiny_llama(vocab_size=VOCABULARY))
    rows = effects(finding).loc[("dimensions", "norm_output")]
    assert (rows["delta_loss"].abs() > 1e-4).all()
    assert "is no test" not in " ".join(finding.warnings)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_sinks_are_those_of_the_models_own_attention(kind: str) -> None:
    model = {"gpt2": tiny_gpt2, "llama": tiny_llama}[kind](vocab_size=VOCABULARY)
    rows, tokens, epsilon = random_rows(), 4, 0.45
    finding = ablated(model, rows, sink_tokens=tokens, sink_epsilon=epsilon)
    table = finding.tables["sinks"].set_index(["what", "how"])
    model.set_attn_implementation("eager")
    alphas = []
    with torch.inference_mode():
        for row in rows:
            if len(row) >= tokens:
                maps = model(input_ids=torch.tensor([row]), output_attentions=True).attentions
                alphas += [float(m[0, h, :tokens, 0].mean()) for m in maps for h in range(4)]
    intact = table.loc[("intact", "intact")]
    assert intact["n"] == 4
    assert intact["first_token_mass"] == pytest.approx(np.mean(alphas), rel=1e-4)
    rate = float(np.mean(np.array(alphas) > epsilon))
    assert 0 < rate < 1
    assert intact["sink_rate"] == pytest.approx(rate)
    assert intact["sink_low"] <= rate <= intact["sink_high"]
    changed = table.drop(index=("intact", "intact"))["first_token_mass"]
    assert (changed / intact["first_token_mass"] - 1).abs().max() > 1e-3


def test_the_chain_from_spike_to_norm_to_value() -> None:
    plant = planted.massive("llama")
    assert isinstance(plant.model, LlamaForCausalLM)
    finding = ablated(plant.model)
    table = finding.tables["chain"].set_index(["layer", "quantity", "tokens"])
    tokens = [(i, t) for row in ROWS for i, t in enumerate(row)]
    groups = {
        "spike": [t for _, t in tokens if t == planted.SPIKE],
        "rest": [t for i, t in tokens if i and t != planted.SPIKE],
    }
    for layer in range(planted.LAYERS):
        block = plant.model.model.layers[layer]
        for name, ids in groups.items():
            x = plant.residual(ids, layer)
            scale = (x.square().mean(-1, keepdim=True) + EPS).sqrt()
            y = x / scale * block.input_layernorm.weight.double()
            value = (y @ block.self_attn.v_proj.weight.double().T).norm(dim=-1)
            expected = {
                "inverse_scale": scale.reciprocal().mean(),
                "output_variance": y.var(-1, correction=0).mean(),
                "value_norm": value.mean(),
            }
            for quantity, number in expected.items():
                row = table.loc[(layer, quantity, name)]
                assert row["n"] == len(ids)
                assert row["value"] == pytest.approx(float(number), rel=1e-4)
    fused = ablated(planted.massive("gpt2").model)
    of_gpt2 = fused.tables["chain"].set_index(["quantity"])
    assert (of_gpt2.loc["value_norm", "status"] == "not_applicable").all()
    assert "no value norm in the chain" in fused.warnings[-1]


def test_random_dimensions_are_as_many_others() -> None:
    drawn = [random_dimensions((0, 3, 4), 8, seed) for seed in range(20)]
    assert {len(set(d)) for d in drawn} == {3}
    assert {j for d in drawn for j in d} == {1, 2, 5, 6, 7}
    assert drawn[0] == random_dimensions((0, 3, 4), 8, 0)


def test_the_estimate_counts_every_pass() -> None:
    chosen = OutlierAblationParameters(sequences=8, random_seeds=2)
    finding = ablated(tiny_gpt2(vocab_size=VOCABULARY), random_seeds=2)
    passes = 3 + len(finding.tables["effects"])
    assert OUTLIER_ABLATION.forwards(chosen, Extent(100, 5)) == 8 * passes
    assert OUTLIER_ABLATION.forwards(chosen, Extent(3, 5)) == 3 * passes


def test_without_a_massive_activation_something_else_is_named() -> None:
    finding = ablated(planted.massive("llama", clean=True).model)
    target = one(finding, "massive", "zero")["target"]
    assert target.startswith("no massive activation; first token's largest; dimension ")
    assert "no massive activation" in finding.warnings[0]
    table = finding.tables["chain"]
    assert set(table.loc[table["tokens"] == "spike", "n"]) == {len(ROWS)}


def test_a_fixed_scale_does_not_change_along_the_chain() -> None:
    table = ablated(tiny_fixed_scale(vocab_size=VOCABULARY), random_rows()).tables["chain"]
    scales = table[table["quantity"] == "inverse_scale"].pivot(
        index="layer", columns="tokens", values="value"
    )
    assert scales["spike"].to_numpy() == pytest.approx(scales["rest"].to_numpy())


def test_no_predictions_are_no_data() -> None:
    finding = ablated(tiny_gpt2(vocab_size=VOCABULARY), [[1], [2]])
    measures = finding.tables["effects"].select_dtypes("float64")
    assert measures.isna().all(axis=None)
    assert (finding.tables["effects"]["status"] == "no_data").all()
    assert finding.tables["sinks"]["sink_rate"].isna().all()
    assert all(math.isnan(h.value) and h.n == 0 for h in finding.headline)
