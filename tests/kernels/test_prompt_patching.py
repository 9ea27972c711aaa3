"""``prompt-patching``: the oracle, closed forms, checks that fail, pairs that do not suit."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from normlens.capture.protocol import Context, Finding
from normlens.catalog.prompt_patching import PROMPT_PATCHING, PromptPatchingParameters
from normlens.errors import NotApplicable
from normlens.hooks import hook_count
from normlens.kernels import prompt_patching
from normlens.kernels.patching import places, record
from normlens.kernels.prompt_patching import KERNEL
from normlens.models.components import component_view
from normlens.models.identity import weights_sha256
from normlens.models.lens import Lens
from normlens.text.encoding import encode_prompt
from tests.architectures import ARCHITECTURES
from tests.kernels.harness import context_of, lens_of, proceed
from tests.oracles import patching as oracle
from tests.tiny import tiny_gpt2, tiny_llama, tokenizer

pytestmark = pytest.mark.components

SHARED = 2
"""BOS and " The" come before what differs in the default pair."""


def lens_with(model: PreTrainedModel) -> Lens:
    return lens_of(model, tokenizer=tokenizer())


def context_with(lens: Lens, **parameters: Any) -> Context:
    chosen = PromptPatchingParameters(**parameters)
    return context_of(lens, chosen, encode_prompt(chosen.clean, tokenizer(), context=64))


def found(lens: Lens, *, size: int = 7, **parameters: Any) -> Finding:
    return proceed(KERNEL, context_with(lens, **parameters), size=size)


def gpt2_modules(model: Any) -> dict[tuple[str, int], tuple[torch.nn.Module, str]]:
    blocks = model.transformer.h
    modules = {("residual", i): (block, "input") for i, block in enumerate(blocks)}
    modules |= {("residual", len(blocks)): (model.transformer.ln_f, "input")}
    modules |= {("attention", i): (block.attn.c_proj, "output") for i, block in enumerate(blocks)}
    return modules | {("mlp", i): (block.mlp.c_proj, "output") for i, block in enumerate(blocks)}


def llama_modules(model: Any) -> dict[tuple[str, int], tuple[torch.nn.Module, str]]:
    blocks = model.model.layers
    modules = {("residual", i): (block, "input") for i, block in enumerate(blocks)}
    modules |= {("residual", len(blocks)): (model.model.norm, "input")}
    modules |= {("attention", i): (b.self_attn.o_proj, "output") for i, b in enumerate(blocks)}
    return modules | {("mlp", i): (b.mlp.down_proj, "output") for i, b in enumerate(blocks)}


@pytest.mark.parametrize(
    ("make", "modules_of"),
    [(tiny_gpt2, gpt2_modules), (tiny_llama, llama_modules)],
    ids=["gpt2", "llama"],
)
def test_equals_the_oracle(
    make: Callable[[], PreTrainedModel], modules_of: Callable[[Any], dict[Any, Any]]
) -> None:
    lens = lens_with(make().double())
    finding = found(lens, smallest_gap=1e-3)
    assert hook_count(lens.model) == 0
    pair = prompt_patching.pair_of(context_with(lens))
    modules = modules_of(lens.model)
    clean_logits, clean = oracle.runs(lens.model, list(modules.values()), pair.clean_ids)
    corrupted_logits, _ = oracle.runs(lens.model, [], pair.corrupted_ids)

    def difference(logits: torch.Tensor) -> float:
        return float(logits[pair.answer_id] - logits[pair.wrong_id])

    base = difference(corrupted_logits)
    gap = difference(clean_logits) - base
    table = finding.tables["recovery"].set_index(["what", "point", "position"])
    assert len(table) == len(modules) * len(pair.clean_ids)
    for (key, (module, where)), activation in zip(modules.items(), clean, strict=True):
        for position in range(len(pair.clean_ids)):
            logits = oracle.patched(
                lens.model, module, where, pair.corrupted_ids, activation, position
            )
            row = table.loc[(*key, position)]
            assert row["difference"] == pytest.approx(difference(logits), abs=1e-5), key
            expected = (difference(logits) - base) / gap
            assert row["recovery"] == pytest.approx(expected, abs=1e-4), key
            if position < SHARED:
                assert row["recovery"] == 0
    assert table["recovery"].abs().max() > 0.05
    runs = finding.tables["runs"].set_index("run")
    assert runs.loc["clean", "difference"] == pytest.approx(base + gap, abs=1e-6)
    probability = clean_logits.softmax(-1)[pair.answer_id]
    assert runs.loc["clean", "answer_probability"] == pytest.approx(float(probability), rel=1e-5)
    assert all(check.passed for check in finding.checks)


def test_without_branches_the_last_token_decides_alone() -> None:
    """No block writes anything: the last token's residual recovers all, at every depth."""
    model = tiny_gpt2()
    with torch.no_grad():
        for block in model.transformer.h:
            for writer in (block.attn.c_proj, block.mlp.c_proj):
                writer.weight.zero_()
                writer.bias.zero_()
    lens = lens_with(model)
    last = {
        "clean": "He took the key",
        "corrupted": "He took the door",
        "answer": ".",
        "wrong": ",",
    }
    table = found(lens, **last).tables["recovery"]
    end = table["position"] == table["position"].max()
    residual = table["what"] == "residual"
    assert table.loc[residual & end, "recovery"].to_numpy() == pytest.approx(1.0, abs=1e-4)
    assert table.loc[~residual | ~end, "recovery"].to_numpy() == pytest.approx(0.0, abs=1e-4)
    assert len(table[residual & end]) == 3
    earlier = found(lens)
    assert earlier.tables["recovery"]["status"].eq("not_applicable").all()
    assert earlier.tables["recovery"]["recovery"].isna().all()
    assert "differ by 0 logits, less than 0.1" in earlier.warnings[0]
    numbers = {h.name: h for h in earlier.headline}
    assert math.isnan(numbers["mlp_largest"].value) and numbers["mlp_largest"].n == 0
    assert all(check.passed for check in earlier.checks)


@pytest.mark.parametrize(
    "name", ["opt", "falcon", "gemma2", "granite", "gpt-neox", "olmo2", "cohere"]
)
def test_checks_hold_however_blocks_are_built(name: str) -> None:
    """Packed linears, in-place sums, norms after branches, scaled branches, parallel blocks."""
    lens = lens_with(ARCHITECTURES[name]())
    finding = found(lens)
    assert [check.passed for check in finding.checks] == [True, True]
    table = finding.tables["recovery"].set_index(["what", "point", "position"])["recovery"]
    end = table.index.get_level_values("position").max()
    assert table[("residual", 0, SHARED)] == pytest.approx(1.0, abs=1e-3)
    assert table[("residual", 2, end)] == pytest.approx(1.0, abs=1e-3)
    assert hook_count(lens.model) == 0
    assert weights_sha256(lens.model) == lens.identity.weights_sha256


def test_batches_do_not_matter() -> None:
    lens = lens_with(tiny_gpt2())
    one, many = (found(lens, size=size).tables["recovery"] for size in (1, 64))
    assert one["recovery"].to_numpy() == pytest.approx(many["recovery"].to_numpy(), abs=1e-3)


def test_wrong_activations_fail_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    lens = lens_with(tiny_gpt2())

    def shifted(view: Any, ids: torch.Tensor) -> Any:
        kept, logits = record(view, ids)
        return {place: x.roll(1, 0) for place, x in kept.items()}, logits

    monkeypatch.setattr(prompt_patching, "record", shifted)
    checks = {check.name: check.passed for check in found(lens).checks}
    assert checks == {"patching_everything_recovers": False, "patching_nothing_changes": True}


def test_exchanged_prompts_mirror_the_gap() -> None:
    lens = lens_with(tiny_gpt2())
    plain = found(lens)
    mirrored = found(lens, clean="The man said that", corrupted="The woman said that")
    gaps = [
        f.tables["runs"].set_index("run")["difference"].loc[["clean", "corrupted"]].to_numpy()
        for f in (plain, mirrored)
    ]
    assert gaps[0].tolist() == pytest.approx(gaps[1][::-1].tolist(), abs=1e-5)
    assert sum("asks more for the answer" in w for f in (plain, mirrored) for w in f.warnings) == 1


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"corrupted": "The man said once that"}, "its prompts have"),
        ({"corrupted": "The woman said that"}, "its prompts are the same"),
        ({"answer": " unhappily ever"}, "is not one token"),
    ],
)
def test_a_pair_that_does_not_suit_the_tokenizer_says_why(
    changed: dict[str, str], words: str
) -> None:
    with pytest.raises(NotApplicable, match=words):
        found(lens_with(tiny_gpt2()), **changed)


def test_places_are_in_the_order_of_the_table() -> None:
    lens = lens_with(tiny_gpt2())
    view = component_view(lens)
    names = [place.name for place in places(view.n_layers)]
    table = found(lens).tables["recovery"]
    rows = table.drop_duplicates(["what", "point"])
    assert [f"{r.what}.{r.point}" for r in rows.itertuples()] == names
    assert set(table) == {*(c.name for c in PROMPT_PATCHING.tables[0].columns), "status"}
    assert table.loc[(table["what"] == "residual") & (table["point"] == 2), "layer"].isna().all()


def test_the_pair_follows_the_bos_policy() -> None:
    lens = lens_with(tiny_gpt2())
    context = context_with(lens)
    bare = dataclasses.replace(
        context, sequences=encode_prompt("The woman said that", tokenizer(), context=64, bos="none")
    )
    assert len(prompt_patching.pair_of(context).clean_ids) == 5
    assert len(prompt_patching.pair_of(bare).clean_ids) == 4
