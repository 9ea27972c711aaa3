"""Rows of families: what they claim of a model is true of it, and every layout has one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification, PreTrainedModel

from normlens.errors import LoadError
from normlens.hooks import Hook
from normlens.models import open_model
from normlens.models.families import FAMILIES, SUPPORTED, Family, falcon, family_named, family_of
from normlens.models.verify import sample_tokens
from tests.architectures import ARCHITECTURES, FALCON, OPT, WIDTH, Tiny
from tests.models.expected_architectures import EXPECTED, Store, every_architecture, opened, run
from tests.tiny import EPS

TABLE = Path(__file__).parents[2] / "docs" / "architectures.json"


@dataclass(frozen=True)
class Zero:
    """Replaces a tensor a hook meets by zeros."""

    def __call__(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)


@every_architecture
def test_the_row_names_what_it_says(architecture: str) -> None:
    """Silencing attention moves the MLP's output iff they run in turn; paths exist."""
    lens, expected = opened(architecture), EXPECTED[architecture]
    family = family_of(lens.model)
    block = lens.model.get_submodule(f"{family.blocks}.0")
    plain, silenced = Store(), Store()
    mlp, attention = (block.get_submodule(p) for p in (family.mlp_out, family.attention_out))
    run(lens, [Hook(mlp, "output", plain)])
    run(lens, [Hook(attention, "output", Zero()), Hook(mlp, "output", silenced)])
    assert family.parallel == expected.parallel
    assert torch.equal(plain.value, silenced.value) == expected.parallel
    assert mlp.get_parameter("weight").shape[family.weight_layout == "in_out"] == WIDTH
    for path in (family.attention, *family.qkv):
        block.get_submodule(path)
    for path in family.embeddings:
        lens.model.get_submodule(path)
    fields = lens.model.config.to_dict()
    assert family.eps_field is None or fields[family.eps_field] == EPS
    assert not isinstance(family.kv_heads, str) or fields[family.kv_heads] in (2, 4)


@every_architecture
def test_causal_means_that_no_token_sees_what_follows(architecture: str) -> None:
    lens, expected = opened(architecture), EXPECTED[architecture]
    ids = sample_tokens(lens.model)
    changed = ids.clone()
    changed[:, -1] += 1
    earlier = run(lens, [], ids)[:, :-1], run(lens, [], changed)[:, :-1]
    assert torch.equal(*earlier) == expected.causal == family_of(lens.model).causal


def variants(rows: tuple[Family, ...], model_type: str, fields: Mapping[str, Any]) -> list[Any]:
    return [
        pytest.param(row, Tiny(model_type, {**fields, **dict(row.when)}), id=f"{model_type}-{i}")
        for i, row in enumerate(rows)
    ]


OPT_ROWS = tuple(row for row in FAMILIES if row.model_type == "opt")


@pytest.mark.parametrize(
    ("row", "make"),
    [*variants(falcon.ROWS, "falcon", FALCON), *variants(OPT_ROWS, "opt", OPT)],
)
def test_every_layout_of_a_family_has_its_row(
    row: Family, make: Callable[[], PreTrainedModel]
) -> None:
    lens = open_model(make(), tokenizer=None)
    assert family_of(lens.model) is row
    assert all(check.passed for check in lens.verification)


def test_every_model_type_is_tested() -> None:
    assert set(EXPECTED) == set(ARCHITECTURES)
    assert {opened(name).model.config.model_type for name in ARCHITECTURES} == set(SUPPORTED)


def test_a_layout_without_a_row_is_refused() -> None:
    fields = {"hidden_size": WIDTH, "n_layer": 1, "n_head": 4}
    odd = Tiny("bloom", {**fields, "apply_residual_connection_post_layernorm": True})
    with pytest.raises(LoadError, match=r"supported: .*apply_residual_connection_post_layernorm=F"):
        open_model(odd(), tokenizer=None)
    config = BertConfig(vocab_size=11, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
    with pytest.raises(LoadError, match=r"BertForSequenceClassification.*BertForMaskedLM"):
        open_model(BertForSequenceClassification(config), tokenizer=None)


def test_an_unknown_family_says_which_are_known() -> None:
    with pytest.raises(LoadError, match=r"'t5' is not supported; supported: gpt2, .*llama"):
        family_named("t5")


def test_the_table_in_the_docs_has_every_architecture() -> None:
    """Made by ``make tables``."""
    rows = json.loads(TABLE.read_text(encoding="utf-8"))["rows"]
    assert list(rows) == list(ARCHITECTURES)
