"""Kinds whose scale is not that of LayerNorm or RMSNorm, against their formulas."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from normlens.capture.collector import component_weights
from normlens.capture.forward import observe
from normlens.capture.protocol import Components, Context
from normlens.capture.tree import component_tree
from normlens.catalog import Need
from normlens.catalog.freeze_sweep import FreezeSweepParameters
from normlens.catalog.logit_attribution import LogitAttributionParameters
from normlens.catalog.scale import ScaleParameters
from normlens.kernels import freeze_sweep, logit_attribution, scale
from normlens.kernels.direct_effect import direct_effects
from normlens.kernels.readout import read_from_logits, read_logits
from normlens.models import Lens
from normlens.models.components import component_view
from tests.contract.every_norm import with_norm
from tests.kernels.harness import (
    REPLICATES,
    VOCABULARY,
    context_of,
    cut,
    lens_of,
    observing,
    proceed,
    random_rows,
    sequences_of,
    stream,
)
from tests.norms.specs import VARIANTS as SPECS
from tests.oracles import freeze_sweep as losses
from tests.oracles import kind_scales as oracle

ROWS = random_rows(4, (9, 4, 12, 2))
LIVE = (
    "layer_norm scaled",
    "crms_norm",
    "scale_norm scaled",
    "simple_rms_norm",
    "l1_norm",
    "l1_norm uncentred",
    "l2_norm",
)
OTHERS = (*LIVE, "batch_norm", "fixed_scale by position")


def opened(name: str, *, double: bool = False) -> Lens:
    model = with_norm(name, vocab_size=VOCABULARY)
    return lens_of(model.double() if double else model)


def facts(name: str) -> dict[str, Any]:
    spec = SPECS[name]
    return {"kind": spec.kind.value, "eps": spec.eps or 0.0, "centred": spec.centred}


@pytest.mark.parametrize("name", LIVE)
def test_scales_are_those_of_the_formula(name: str) -> None:
    lens = opened(name)
    context = context_of(lens, ScaleParameters(), sequences_of(ROWS))
    finding = stream(scale.KERNEL, context, observing(lens, Need.NORM_MOMENTS))
    table = finding.tables["scale"].set_index(["site", "group"])
    assert table["applied"].all()
    exact = copy.deepcopy(lens.model).double()
    for site in lens.sites:
        groups = oracle.scales(exact, site.path, ROWS, **facts(name))
        for group, expected in zip(("first", "rest"), groups, strict=True):
            row, values = table.loc[(site.label, group)], torch.tensor(expected)
            assert row["n"] == len(values)
            assert row["mean"] == pytest.approx(values.mean().item(), rel=1e-5)
            assert row["sd"] == pytest.approx(values.std(correction=0).item(), rel=1e-3, abs=1e-6)
            assert row["maximum"] == pytest.approx(values.max().item(), rel=1e-5)


@pytest.mark.parametrize("name", ["l1_norm", "crms_norm", "scale_norm scaled", "layer_norm scaled"])
def test_freezing_equals_replacing_the_modules(name: str) -> None:
    lens = opened(name)
    context = context_of(lens, FreezeSweepParameters(), sequences_of(ROWS))
    finding = proceed(freeze_sweep.KERNEL, context)
    table = finding.tables["sweep"].set_index(["mode", "site"])
    exact = copy.deepcopy(lens.model).double()
    means: dict[str, tuple[float, float]] = {}
    for site in lens.sites:
        first, rest = oracle.scales(exact, site.path, ROWS, **facts(name))
        means[site.path] = sum(first) / len(first), sum(rest) / len(rest)
    made = partial(oracle.freeze, exact, factor=SPECS[name].factor, centred=SPECS[name].centred)
    final = lens.sites[-1].path
    for key, frozen in (
        (("single", "final"), {final: means[final]}),
        (("cumulative", "final"), means),
    ):
        values = losses.losses(exact, made(frozen), ROWS)
        loss, intact, kl = (torch.cat(values[k]) for k in ("frozen", "intact", "kl"))
        row = table.loc[key]
        assert row["delta_loss"] == pytest.approx((loss - intact).mean().item(), rel=2e-4, abs=2e-5)
        assert row["kl"] == pytest.approx(kl.mean().item(), rel=2e-4, abs=2e-6)
        assert row["kl"] > 1e-5
    assert all(check.passed for check in finding.checks)


@pytest.mark.parametrize("name", OTHERS)
def test_direct_effects_are_those_of_the_model_s_own_final_norm(name: str) -> None:
    lens = opened(name, double=True)
    view = component_view(lens)
    weights = component_weights(view, lens)
    needs = frozenset({Need.COMPONENTS, Need.LOGITS})
    (batch,) = cut(sequences_of(ROWS), len(ROWS))
    observed = observe(component_tree(view, lens), batch, needs)
    assert observed.components is not None and observed.logits is not None
    targets = batch.ids.roll(-1, 1)
    effects = direct_effects(observed.components, weights, read_logits(weights, targets))
    logit = read_from_logits(observed.logits, targets)
    assert effects.discrepancy(logit).max() < 1e-10
    residual = observed.components.residual

    def read(x: Tensor) -> Tensor:
        with torch.no_grad():
            logits = lens.model.lm_head(lens.model.model.final_norm(x))
        return (logits - logits.mean(-1, keepdim=True)).gather(-1, targets[..., None])[..., 0]

    found = dict(zip((c.name for c in effects.components), effects.effect, strict=True))
    vectors = written(observed.components, weights)
    assert set(found) == set(vectors)
    for component, vector in vectors.items():
        expected = read(residual) - read(residual - vector)
        torch.testing.assert_close(found[component], expected, rtol=1e-8, atol=1e-9)
    live = SPECS[name].kind.has_live_scale
    assert bool((effects.repair.abs() > 1e-3).any()) == live
    assert live or not effects.repair.any()


def written(components: Components, weights: Any) -> dict[str, Tensor]:
    """What every component adds to the residual of a pre-norm decoder."""
    out = dict(components.embeddings)
    for layer, (z, mlp) in enumerate(zip(components.z, components.mlp, strict=True)):
        w_o = weights.w_o[layer]
        for head, part in enumerate(z.unflatten(-1, w_o.shape[:2]).unbind(-2)):
            out[f"L{layer}.H{head}"] = part @ w_o[head]
        out[f"L{layer}.attn_bias"] = weights.b_o[layer].expand_as(mlp)
        out[f"L{layer}.mlp"] = mlp
    return out


def test_golden_mode_reads_the_constant_of_the_token_s_own_position() -> None:
    lens = opened("fixed_scale by position", double=True)
    view = component_view(lens)
    tree, needs = component_tree(view, lens), frozenset({Need.COMPONENTS, Need.LOGITS})
    context = Context(
        lens,
        LogitAttributionParameters(mode="golden"),
        sequences_of(ROWS),
        REPLICATES,
        component_weights(view, lens),
    )
    finding = stream(logit_attribution.KERNEL, context, lambda batch: observe(tree, batch, needs))
    (check,) = finding.checks
    assert check.passed, check
