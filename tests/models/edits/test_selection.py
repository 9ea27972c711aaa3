"""Sites by words."""

from __future__ import annotations

import pytest

from normlens.errors import UsageError
from normlens.models.edits import select_sites
from tests.models.expected_architectures import opened


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("all", "0.pre_attn 0.pre_mlp 1.pre_attn 1.pre_mlp final"),
        ("pre_mlp", "0.pre_mlp 1.pre_mlp"),
        ("1", "1.pre_attn 1.pre_mlp"),
        ("0-1.pre_attn", "0.pre_attn 1.pre_attn"),
        ("final, 0.pre_mlp", "0.pre_mlp final"),
        ("1.all", "1.pre_attn 1.pre_mlp"),
    ],
)
def test_terms(text: str, labels: str) -> None:
    chosen = select_sites(opened("gpt2"), text)
    assert " ".join(site.label for site in chosen) == labels


@pytest.mark.parametrize("text", ["", "mlp", "0-", "pre_mlp.0", "0.", "a,b", "1 2"])
def test_what_cannot_be_read(text: str) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        select_sites(opened("gpt2"), text)


@pytest.mark.parametrize("text", ["7", "q", "3-5.pre_mlp", "0.final", "2-1"])
def test_what_names_nothing(text: str) -> None:
    with pytest.raises(UsageError, match=r"names no norm of .* 2 layers"):
        select_sites(opened("gpt2"), text)
