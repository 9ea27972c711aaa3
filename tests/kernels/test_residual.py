"""``residual`` and ``branches``: the oracle, closed forms, scale, a sum that must hold."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from normlens import runner
from normlens.capture.statistics import REPLICATES, interval, poisson_weights
from normlens.capture.steps import Step
from normlens.kernels import residual_branches
from normlens.kernels.alignment import alignment, centred, without_largest
from normlens.models import Lens, open_model
from normlens.models.blocks import block_modules
from normlens.results import Result
from normlens.text.sequences import Sequences
from tests.oracles import residual as oracle
from tests.tiny import tiny_fixed_scale, tiny_gpt2, tiny_llama

LENGTHS, DOCUMENTS = (9, 4, 12, 7, 2), (0, 0, 1, 2, 2)
MODELS = {"gpt2": tiny_gpt2, "llama": tiny_llama, "fixed": tiny_fixed_scale}
BRANCHES = {
    "gpt2": ("attn.c_proj", "mlp.c_proj"),
    "llama": ("self_attn.o_proj", "mlp.down_proj"),
    "fixed": ("attn.c_proj", "mlp.c_proj"),
}
each_model = pytest.mark.parametrize("name", MODELS)


def rows() -> list[list[int]]:
    generator = torch.Generator().manual_seed(8)
    return [torch.randint(1, 4096, (n,), generator=generator).tolist() for n in LENGTHS]


def corpus(extra: int = 0) -> Sequences:
    lengths = torch.tensor(LENGTHS)
    ids = torch.full((len(LENGTHS), max(LENGTHS) + extra), 9)
    for i, row in enumerate(rows()):
        ids[i, : len(row)] = torch.tensor(row)
    names = ("book 0", "book 1", "book 2")
    return Sequences(ids, lengths, torch.tensor(DOCUMENTS), names, "toy", "none", 9, "0")


def opened(model: PreTrainedModel, name: str = "toy") -> Lens:
    return open_model(model, tokenizer=None, name=name)


@cache
def lens_of(name: str) -> Lens:
    return opened(MODELS[name](), name)


def run(analysis: str, lens: Lens, **how: Any) -> Result:
    (found,) = runner.run([analysis], lens, corpus(), **{"batch_size": 2, **how})
    return found


def streams(lens: Lens) -> list[list[np.ndarray]]:
    blocks = list(block_modules(lens.model))
    return [oracle.stream(lens.model, blocks, row) for row in rows()]


def members(group: str, length: int) -> list[int]:
    return [0] if group == "first" else list(range(1, length))


@each_model
def test_points_equal_the_oracle(name: str) -> None:
    lens = lens_of(name)
    found = run("residual", lens)
    seen = streams(lens)
    table = found.tables["points"].set_index(["group", "point"])
    typical: dict[tuple[str, int], float] = {}
    for group in ("first", "rest"):
        for point in range(3):
            tokens = [s[point][i] for s in seen for i in members(group, len(s[point]))]
            norms = [oracle.length(x) for x in tokens]
            row = table.loc[(group, point)]
            typical[group, point] = math.exp(np.mean(np.log(norms)))
            assert row["n"] == len(tokens)
            assert row["norm"] == pytest.approx(np.mean(norms), rel=1e-5)
            assert row["q50"] == pytest.approx(sorted(norms)[-(-len(norms) // 2) - 1], rel=3e-3)
            assert row["variance"] == pytest.approx(np.mean([np.var(x) for x in tokens]), rel=1e-4)
            assert row["typical"] == pytest.approx(typical[group, point], rel=1e-5)
            growth = typical[group, point] / typical[group, 0]
            assert row["growth"] == pytest.approx(growth, rel=1e-5)
    ratios = [typical["first", p] / typical["rest", p] for p in range(3)]
    assert found.tables["first_token"]["ratio"].to_numpy() == pytest.approx(ratios, rel=1e-5)
    headline = {h.name: h.value for h in found.headline[name]}
    assert headline["growth"] == pytest.approx(typical["rest", 2] / typical["rest", 0], rel=1e-5)
    assert headline["first_token_ratio_largest"] == pytest.approx(max(ratios), rel=1e-5)
    assert found.passed
    assert found.checks[name]


def test_the_interval_of_growth_is_that_of_paired_documents() -> None:
    lens = lens_of("gpt2")
    logs = [[np.log([oracle.length(x) for x in s[p][1:]]) for p in range(3)] for s in streams(lens)]
    weights = poisson_weights(("book 0", "book 1", "book 2"), 0, REPLICATES)[:, list(DOCUMENTS)]
    change = torch.tensor([float((row[2] - row[0]).sum()) for row in logs]).double()
    counts = torch.tensor([float(len(row[0])) for row in logs]).double()
    low, high = interval(((weights @ change) / (weights @ counts)).exp())
    found = {h.name: h for h in run("residual", lens).headline["gpt2"]}["growth"]
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-5)


@each_model
def test_steps_equal_the_oracle(name: str) -> None:
    lens = lens_of(name)
    table = run("residual", lens).tables["steps"].set_index(["group", "layer"])
    seen = streams(lens)
    for group in ("first", "rest"):
        for layer in range(2):
            pairs = [
                (s[layer][i], s[layer + 1][i]) for s in seen for i in members(group, len(s[layer]))
            ]
            row = table.loc[(group, layer)]
            expected = {
                "cosine": [oracle.cosine(*pair) for pair in pairs],
                "cosine_centred": [oracle.centred_cosine(*pair) for pair in pairs],
                "cosine_trimmed": [oracle.trimmed_cosine(*pair, 3) for pair in pairs],
                "influence": [1 - oracle.cosine(*pair) for pair in pairs],
                "angular_distance": [oracle.angle(*pair) for pair in pairs],
            }
            for column, values in expected.items():
                assert row[column] == pytest.approx(np.mean(values), abs=1e-5), column


@pytest.mark.components
@each_model
def test_branches_equal_the_oracle(name: str) -> None:
    lens = lens_of(name)
    found = run("branches", lens)
    seen = streams(lens)
    table = found.tables["branches"].set_index(["branch", "group", "layer"])
    for branch, path in zip(("attention", "mlp"), BRANCHES[name], strict=True):
        modules = [block.get_submodule(path) for block in block_modules(lens.model)]
        added = [oracle.outputs(lens.model, modules, row) for row in rows()]
        for group in ("first", "rest"):
            for layer in range(2):
                pairs = [
                    (b[layer][i], s[layer][i])
                    for b, s in zip(added, seen, strict=True)
                    for i in members(group, len(s[layer]))
                ]
                row = table.loc[(branch, group, layer)]
                expected = {
                    "norm": [oracle.length(b) for b, _ in pairs],
                    "ratio": [oracle.length(b) / oracle.length(x) for b, x in pairs],
                    "cosine": [oracle.cosine(b, x) for b, x in pairs],
                    "cosine_centred": [oracle.centred_cosine(b, x) for b, x in pairs],
                }
                for column, values in expected.items():
                    assert row[column] == pytest.approx(np.mean(values), abs=1e-5, rel=1e-5)
    assert found.passed


@pytest.mark.components
def test_branches_that_do_not_add_up_fail_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = residual_branches.KERNEL.reduce

    def without_a_bit(point: Any, value: Step, batch: Any, context: Any) -> Any:
        assert value.mlp is not None
        short = Step(value.before, value.after, value.attention, value.mlp * 0.99)
        return honest(point, short, batch, context)

    kernel = residual_branches.Streaming(
        init=residual_branches.KERNEL.init,
        update=residual_branches.KERNEL.update,
        finish=residual_branches.KERNEL.finish,
        reduce=without_a_bit,
    )
    monkeypatch.setattr(residual_branches, "KERNEL", kernel)
    assert not run("branches", lens_of("gpt2")).passed


def test_ratios_do_not_depend_on_the_scale_of_a_pre_norm_residual() -> None:
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
    one, other = (run("residual", opened(m)) for m in (model, scaled))
    a, b = one.tables["points"], other.tables["points"]
    assert b["norm"].to_numpy() == pytest.approx(8 * a["norm"].to_numpy(), rel=1e-4)
    assert b["growth"].to_numpy() == pytest.approx(a["growth"].to_numpy(), rel=1e-4)
    for table, column in (("steps", "angular_distance"), ("first_token", "ratio")):
        left, right = one.tables[table][column], other.tables[table][column]
        assert right.to_numpy() == pytest.approx(left.to_numpy(), rel=1e-4)


def test_a_zero_residual_is_left_out_and_said() -> None:
    model = tiny_gpt2()
    with torch.no_grad():
        model.transformer.wpe.weight.zero_()
        model.transformer.wte.weight[rows()[2][3]] = 0
    found = run("residual", opened(model))
    table = found.tables["points"].set_index(["group", "point"])
    assert table.loc[("rest", 0), "status"] == "overflow"
    assert table.loc[("rest", 0), "n"] == table.loc[("rest", 1), "n"] - 1
    assert table["typical"].notna().all()
    assert "1 tokens" in found.warnings[0]


def test_alignment_keeps_its_precision_where_vectors_are_nearly_parallel() -> None:
    a = torch.randn(50, 64, generator=torch.Generator().manual_seed(1))
    step = 1e-4 * torch.randn(50, 64, generator=torch.Generator().manual_seed(2))
    distance, angle = alignment(a, a + step)
    exact = alignment(a.double(), (a + step).double())
    assert torch.allclose(distance.double(), exact[0], rtol=5e-3, atol=0)
    assert torch.allclose(angle.double(), exact[1], rtol=5e-3, atol=0)
    plain = 1 - torch.cosine_similarity(a, a + step)
    assert ((plain.double() - exact[0]).abs() / exact[0]).max() > 0.1
    opposite = alignment(a, -a)
    assert torch.allclose(opposite, torch.tensor([[2.0], [1.0]]).expand(2, 50), atol=1e-5)


def test_centring_and_trimming() -> None:
    x = torch.tensor([[3.0, 1.0, -50.0, 2.0]])
    assert centred(x + 7).tolist() == centred(x).tolist()
    a, b = without_largest(x, torch.ones(1, 4), 1)
    assert a.tolist() == [[3.0, 1.0, 0.0, 2.0]]
    assert b.tolist() == [[1.0, 1.0, 0.0, 1.0]]
    assert (without_largest(x, x, 9)[0] != 0).sum() == 1
