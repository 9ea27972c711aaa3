"""``gradients``: plain autograd, closed forms, the scale of the residual, a model untouched."""

from __future__ import annotations

import copy
import dataclasses
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from normlens import runner
from normlens.capture.batches import batches
from normlens.catalog.declaration import Extent
from normlens.catalog.gradients import GRADIENTS, GradientsParameters
from normlens.hooks import hook_count
from normlens.kernels import gradients_tape
from normlens.models import Lens, open_model
from normlens.models.copying import structural_copy
from normlens.models.identity import weights_sha256
from normlens.results import Result
from normlens.text.sequences import Sequences
from tests.oracles import gradients as oracle
from tests.tiny import tiny_fixed_scale, tiny_gpt2, tiny_llama

LENGTHS, DOCUMENTS = (9, 4, 12, 1, 2), (0, 0, 1, 2, 2)
MODELS = {"gpt2": tiny_gpt2, "llama": tiny_llama, "fixed": tiny_fixed_scale}
BLOCKS = {"gpt2": "transformer.h", "llama": "model.layers", "fixed": "transformer.h"}
FINAL = {"gpt2": "transformer.ln_f", "llama": "model.norm", "fixed": "transformer.ln_f"}
each_model = pytest.mark.parametrize("name", MODELS)


def rows() -> list[list[int]]:
    generator = torch.Generator().manual_seed(8)
    return [torch.randint(1, 4096, (n,), generator=generator).tolist() for n in LENGTHS]


def corpus(extra: int = 0) -> Sequences:
    ids = torch.full((len(LENGTHS), max(LENGTHS) + extra), 9)
    for i, row in enumerate(rows()):
        ids[i, : len(row)] = torch.tensor(row)
    names = ("book 0", "book 1", "book 2")
    lengths = torch.tensor(LENGTHS)
    return Sequences(ids, lengths, torch.tensor(DOCUMENTS), names, "toy", "none", 9, "0")


@cache
def lens_of(name: str) -> Lens:
    return open_model(MODELS[name](), tokenizer=None, name=name)


def run(lens: Lens, sequences: Sequences | None = None, **how: Any) -> Result:
    (found,) = runner.run(["gradients"], lens, sequences or corpus(), **{"batch_size": 2, **how})
    return found


@cache
def expected(name: str) -> list[oracle.Found]:
    return [oracle.of_sequence(lens_of(name).model, BLOCKS[name], r) for r in rows() if len(r) > 1]


@each_model
def test_residual_gradients_equal_plain_autograd(name: str) -> None:
    found = run(lens_of(name))
    table = found.tables["points"].set_index(["group", "point"])
    for group, where in (("first", slice(0, 1)), ("rest", slice(1, None))):
        means = []
        for point in range(3):
            tokens = [
                (g.norm(), x.norm())
                for one in expected(name)
                for g, x in zip(
                    one.gradients[point][:-1][where], one.points[point][:-1][where], strict=True
                )
            ]
            row = table.loc[(group, point)]
            means.append(np.mean([float(g) for g, _ in tokens]))
            assert row["n"] == len(tokens)
            assert row["gradient"] == pytest.approx(means[-1], rel=1e-4)
            products = [float(g * x) for g, x in tokens]
            assert row["sensitivity"] == pytest.approx(np.mean(products), rel=1e-4)
        for point in range(3):
            ratio = means[point] / means[2]
            assert table.loc[(group, point), "relative"] == pytest.approx(ratio, rel=1e-4)
    headline = {h.name: h for h in found.headline[name]}
    ratio = headline["gradient_first_over_last"]
    assert ratio.value == pytest.approx(means[0] / means[2], rel=1e-4)
    assert ratio.low <= ratio.value <= ratio.high
    assert found.passed
    assert found.checks[name]


@each_model
def test_parameter_gradients_equal_plain_autograd(name: str) -> None:
    table = run(lens_of(name)).tables["parameters"].set_index(["layer", "part"])
    sites = {site.path for site in lens_of(name).sites}
    attention = "attn" if name != "llama" else "self_attn"
    groups: dict[tuple[int, str], list[str]] = {}
    for parameter in expected(name)[0].parameters:
        if not parameter.startswith(BLOCKS[name]):
            continue
        layer, inner = parameter.removeprefix(f"{BLOCKS[name]}.").split(".", 1)
        owner = parameter.rsplit(".", 1)[0]
        part = "norms" if owner in sites else "attention" if inner.startswith(attention) else "mlp"
        groups.setdefault((int(layer), part), []).append(parameter)
    assert set(table.index) == set(groups)
    lengths = [n for n in LENGTHS if n > 1]
    for key, names in groups.items():
        sizes, products = [], []
        for one, length in zip(expected(name), lengths, strict=True):
            size = sum(float(one.parameters[n].square().sum()) for n in names) ** 0.5 / (length - 1)
            weight = sum(float(one.weights[n].square().sum()) for n in names) ** 0.5
            sizes.append(size)
            products.append(size * weight)
        assert table.loc[key, "gradient"] == pytest.approx(np.mean(sizes), rel=1e-4)
        assert table.loc[key, "sensitivity"] == pytest.approx(np.mean(products), rel=1e-4)
        assert table.loc[key, "n"] == sum(lengths) - len(lengths)


@each_model
def test_attenuation_of_the_final_norm_is_that_of_its_jacobian(name: str) -> None:
    """Nothing but the norm: the residual's gradient at the last point is ``J^T g`` there."""
    lens = lens_of(name)
    table = run(lens).tables["norms"].set_index(["group", "site"])
    unembedding = lens.model.get_output_embeddings().weight.double()
    final = lens.model.get_submodule(FINAL[name])
    ratios: dict[str, list[float]] = {"first": [], "rest": []}
    for row, one in zip([r for r in rows() if len(r) > 1], expected(name), strict=True):
        for i in range(len(row) - 1):
            x = one.points[2][i]
            jacobian = oracle.norm_jacobian(final, x)
            y = norms_output(final, x)
            p = (unembedding @ y).softmax(-1)
            p[row[i + 1]] -= 1
            g = unembedding.T @ p
            ratios["rest" if i else "first"].append(float((jacobian.T @ g).norm() / g.norm()))
    for group, values in ratios.items():
        assert table.loc[(group, "final"), "attenuation"] == pytest.approx(
            np.mean(values), rel=1e-4
        )
    inner = table.loc[("rest", "1.pre_mlp"), "attenuation"]
    assert 0 < inner < 10


@each_model
def test_a_norms_gradient_is_its_own_and_not_the_residuals(name: str) -> None:
    lens = lens_of(name)
    twin = dataclasses.replace(lens, model=structural_copy(lens.model))
    sequences = corpus()
    weights = torch.ones(1, 3).double()
    (one,) = batches(sequences, 0, 1, size=1, device="cpu", weights=weights)
    found = gradients_tape.differentiate(twin, one)
    site = next(s for s in lens.sites if s.label == "1.pre_attn")
    for token in (0, 3, 7):
        jacobian = oracle.norm_jacobian(lens.module(site), found.residual[1][token])
        expected = jacobian.T @ found.by_norm_output[site.label][token].double()
        own = found.by_norm_input[site.label][token].double()
        assert torch.allclose(own, expected, rtol=1e-3, atol=1e-6)
        assert not torch.allclose(found.by_residual[1][token].double(), expected, rtol=0.1)


def norms_output(module: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:

    with torch.no_grad():
        return copy.deepcopy(module).double()(x)


def test_sensitivity_does_not_depend_on_the_scale_of_the_residual() -> None:
    """Embeddings and everything that writes, times 8; eps times 64: the same function."""
    model, scaled = tiny_gpt2(), tiny_gpt2(layer_norm_epsilon=3e-4 * 64)
    with torch.no_grad():
        for block in scaled.transformer.h:
            for writer in (block.attn.c_proj, block.mlp.c_proj):
                writer.weight *= 8
                writer.bias *= 8
        scaled.lm_head.weight = torch.nn.Parameter(scaled.lm_head.weight.clone())
        scaled.transformer.wte.weight *= 8
        scaled.transformer.wpe.weight *= 8
    one, other = (run(open_model(m, tokenizer=None, name="m")) for m in (model, scaled))
    a, b = one.tables["points"], other.tables["points"]
    assert b["gradient"].to_numpy() == pytest.approx(a["gradient"].to_numpy() / 8, rel=1e-3)
    assert b["sensitivity"].to_numpy() == pytest.approx(a["sensitivity"].to_numpy(), rel=1e-3)


def test_batches_and_padding_do_not_matter() -> None:
    lens = lens_of("gpt2")
    whole = run(lens, batch_size=16)
    for other in (run(lens, batch_size=1), run(lens, corpus(extra=5), batch_size=3)):
        for name in ("points", "norms", "parameters"):
            left, right = whole.tables[name], other.tables[name]
            for column in left.select_dtypes("float64"):
                assert right[column].to_numpy() == pytest.approx(
                    left[column].to_numpy(), rel=1e-4
                ), (name, column)


@pytest.mark.parametrize("weights", [True, False])
def test_the_model_is_left_as_it_was(weights: bool) -> None:
    lens = lens_of("gpt2")
    found = run(lens, parameters={"gradients": {"weights": weights, "sequences": 2}})
    assert hook_count(lens.model) == 0
    assert weights_sha256(lens.model) == lens.identity.weights_sha256
    assert not any(p.requires_grad or p.grad is not None for p in lens.model.parameters())
    assert bool(len(found.tables["parameters"])) == weights
    assert set(found.tables["points"].loc[lambda t: t["group"] == "first", "n"]) == {2}


def test_a_wrong_gradient_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = gradients_tape.torch.autograd.grad
    monkeypatch.setattr(
        gradients_tape.torch.autograd,
        "grad",
        lambda *a, **k: tuple(g * 1.2 for g in honest(*a, **k)),
    )
    assert not run(lens_of("gpt2"), fresh=True).passed


def test_a_sequence_of_one_token_is_no_data() -> None:
    whole = corpus()
    ones = torch.ones_like(whole.lengths)
    alone = Sequences(
        whole.ids[:, :1], ones, whole.document, whole.document_ids, "firsts", "none", 9, "0"
    )
    found = run(lens_of("gpt2"), alone)
    assert (found.tables["points"]["n"] == 0).all()
    assert found.tables["points"]["gradient"].isna().all()
    assert found.checks["gpt2"] == ()


def test_the_declared_cost_is_a_forward_and_a_backward_pass() -> None:
    assert GRADIENTS.forwards(GradientsParameters(sequences=8), Extent(100, 13)) == 24
    assert GRADIENTS.forwards(GradientsParameters(sequences=8), Extent(5, 13)) == 15
