"""``prompt-scale``: every token against the oracle, scale-free sites, heads, refusals."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import PreTrainedModel

from normlens.capture.forward import observe
from normlens.capture.protocol import Finding
from normlens.capture.tree import plain_tree
from normlens.catalog import Need
from normlens.catalog.prompt_scale import PROMPT_SCALE, PromptScaleParameters
from normlens.errors import NotApplicable
from normlens.hooks import hook_count
from normlens.kernels.prompt_scale import KERNEL
from normlens.models.lens import Lens
from normlens.norms.spec import NormKind, NormSpec
from normlens.text.sequences import Batch
from tests.architectures import ARCHITECTURES
from tests.kernels.harness import context_of, lens_of, sequences_of, stream
from tests.oracles import scale as oracle
from tests.tiny import EPS, tiny_fixed_scale, tiny_gpt2, tiny_llama, tokenizer

TOKENS = [0, 5, 9, 3, 5, 77, 9]
MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "layer_norm": tiny_gpt2,
    "rms_norm": tiny_llama,
    "fixed_scale": tiny_fixed_scale,
}


def lens_with(model: PreTrainedModel) -> Lens:
    return lens_of(model, tokenizer=tokenizer())


def found(lens: Lens, *, extra: int = 0) -> Finding:
    context = context_of(lens, PromptScaleParameters(), sequences_of([TOKENS], extra=extra))

    def look(batch: Batch):
        return observe(
            plain_tree(lens),
            batch,
            PROMPT_SCALE.needs,
            lambda point, x: KERNEL.reduce(point, x, batch, context),
        )

    finding = stream(KERNEL, context, look)
    assert hook_count(lens.model) == 0
    return finding


def inputs_of(model: PreTrainedModel, paths: list[str]) -> dict[str, np.ndarray]:
    """Input ``[token ...]`` of every module of these paths."""
    seen: dict[str, np.ndarray] = {}

    def keep(path: str):
        def hook(_module: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> None:
            seen[path] = args[0][0].double().numpy()

        return hook

    handles = [model.get_submodule(p).register_forward_pre_hook(keep(p)) for p in paths]
    with torch.inference_mode():
        model(input_ids=torch.tensor([TOKENS]), use_cache=False)
    for handle in handles:
        handle.remove()
    return seen


@pytest.mark.parametrize("kind", MODELS)
def test_equals_the_oracle(kind: str) -> None:
    lens = lens_with(MODELS[kind]())
    finding = found(lens)
    table = finding.tables["scale"].set_index(["site", "position"])
    inputs = inputs_of(lens.model, [site.path for site in lens.sites])
    as_norm = "rms_norm" if kind == "rms_norm" else "layer_norm"
    eps = 0.0 if kind == "fixed_scale" else EPS
    for site in lens.sites:
        for position, x in enumerate(inputs[site.path]):
            row = table.loc[(site.label, position)]
            assert row["scale"] == pytest.approx(oracle.scale(x, as_norm, eps), rel=1e-5)
            assert row["scale"] != pytest.approx(oracle.scale(x, as_norm, eps + 0.3), rel=1e-5)
            assert row["input_norm"] == pytest.approx(math.sqrt((x**2).sum()), rel=1e-5)
            assert row["applied"] == (kind != "fixed_scale")
            constant = site.spec.fixed_scale if kind == "fixed_scale" else math.nan
            assert row["applied_scale"] == pytest.approx(constant, nan_ok=True)
    assert all(check.passed for check in finding.checks)


@pytest.mark.parametrize("kind", MODELS)
def test_the_residual_is_that_of_the_model(kind: str) -> None:
    lens = lens_with(MODELS[kind]())
    table = found(lens).tables["residual"].set_index(["point", "position"])["norm"]
    with torch.inference_mode():
        out = lens.model(
            input_ids=torch.tensor([TOKENS]), output_hidden_states=True, use_cache=False
        )
    # The last hidden state is that after the final norm.
    for point, state in enumerate(out.hidden_states[:-1]):
        expected = state[0].double().norm(dim=-1).numpy()
        assert table[point].to_numpy() == pytest.approx(expected, rel=1e-5)
    final = next(site for site in lens.sites if site.label == "final")
    last = np.sqrt((inputs_of(lens.model, [final.path])[final.path] ** 2).sum(-1))
    assert table[len(out.hidden_states) - 1].to_numpy() == pytest.approx(last, rel=1e-5)


def test_headlines_keep_the_first_token_apart() -> None:
    finding = found(lens_with(tiny_gpt2()))
    table = finding.tables["scale"].pivot(index="site", columns="position", values="scale")
    numbers = {h.name: h for h in finding.headline}
    ratios = table[0] / table.loc[:, 1:].median(axis=1)
    assert numbers["first_token_ratio"].value == pytest.approx(ratios.median(), rel=1e-9)
    assert numbers["first_token_ratio_largest"].value == pytest.approx(ratios.max(), rel=1e-9)
    spread = (table.loc[:, 1:].std(axis=1, ddof=0) / table.loc[:, 1:].mean(axis=1)).median()
    assert numbers["spread"].value == pytest.approx(spread, rel=1e-9)
    assert numbers["spread"].n == len(TOKENS) - 1
    assert math.isnan(numbers["would_be_spread"].value) and numbers["would_be_spread"].n == 0
    norms = finding.tables["residual"].pivot(index="point", columns="position", values="norm")
    growth = np.exp(np.log(norms.loc[2, 1:] / norms.loc[0, 1:]).mean())
    assert numbers["growth"].value == pytest.approx(growth, rel=1e-9)
    free = {h.name: h for h in found(lens_with(tiny_fixed_scale())).headline}
    assert math.isnan(free["spread"].value) and free["would_be_spread"].value > 0


def test_padding_changes_nothing_but_masked_tokens_would() -> None:
    lens = lens_with(tiny_gpt2())
    plain, padded = found(lens), found(lens, extra=4)
    for name in plain.tables:
        pd.testing.assert_frame_equal(plain.tables[name], padded.tables[name], rtol=1e-4)
    assert plain.tables["residual"]["position"].max() == len(TOKENS) - 1


def test_norms_of_heads_have_a_row_each() -> None:
    lens = lens_with(ARCHITECTURES["qwen3"]())
    table = found(lens).tables["scale"]
    queries = table[table["role"] == "q"]
    assert queries.groupby("site").size().eq(len(TOKENS) * 4).all()
    assert set(queries["head"]) == {0, 1, 2, 3}
    assert table.loc[~table["role"].isin(("q", "k")), "head"].isna().all()
    site = next(site for site in lens.sites if site.label == "1.q")
    x = inputs_of(lens.model, [site.path])[site.path]
    expected = np.sqrt((x**2).mean(-1) + EPS)
    rows = queries[queries["site"] == "1.q"].pivot(index="position", columns="head", values="scale")
    assert rows.to_numpy(float) == pytest.approx(expected, rel=1e-5)


def test_no_scale_is_invented_for_an_opaque_norm() -> None:
    lens = lens_with(tiny_gpt2())
    first, *others = lens.sites
    opaque = NormSpec(NormKind.OPAQUE, 32)
    mixed = dataclasses.replace(lens, sites=(dataclasses.replace(first, spec=opaque), *others))
    table = found(mixed).tables["scale"]
    blind = table["site"] == first.label
    assert table.loc[blind, "scale"].isna().all()
    assert table.loc[blind, "status"].eq("not_applicable").all()
    assert table.loc[blind, "input_norm"].gt(0).all()
    assert table.loc[~blind, "status"].eq("ok").all()
    none = dataclasses.replace(
        lens, sites=tuple(dataclasses.replace(s, spec=opaque) for s in lens.sites)
    )
    with pytest.raises(NotApplicable, match="opaque"):
        found(none)


def test_overflow_is_a_status_and_no_number() -> None:
    model = tiny_gpt2()
    lens = lens_with(model)
    with torch.no_grad():
        model.transformer.wte.weight[77] *= 1e30
    finding = found(lens)
    table = finding.tables["scale"]
    lost = table[(table["position"] == TOKENS.index(77)) & (table["layer"] == 0)]
    assert lost["status"].eq("overflow").all() and lost["scale"].isna().all()
    assert "not finite" in finding.warnings[0]
    before = (table["position"] == 1) & (table["site"] == "0.pre_attn")
    assert table.loc[before, "status"].eq("ok").all()


def test_another_residual_than_the_final_norm_reads_fails_the_check() -> None:
    lens = lens_with(tiny_gpt2())
    context = context_of(lens, PromptScaleParameters(), sequences_of([TOKENS]))

    def look(batch: Batch):
        return observe(
            plain_tree(lens),
            batch,
            frozenset({Need.NORM_MOMENTS, Need.RESIDUAL}),
            lambda point, x: KERNEL.reduce(point, 1.01 * x, batch, context),
        )

    checks = {c.name: c.passed for c in stream(KERNEL, context, look).checks}
    assert checks == {"norms_recomputed": True, "last_point_is_read_by_final_norm": False}
