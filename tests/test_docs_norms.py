"""Every kind of norm has its page, with formula, source and picture."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from normlens.norms import KINDS, NormKind


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "docs")
    import gen_norms

    for name in ("gen_norms", "gen_markdown"):
        monkeypatch.delitem(sys.modules, name)
    return gen_norms


@pytest.mark.kind_cell("docs")
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_kind_has_its_page(kind: NormKind, pages: ModuleType) -> None:
    row = KINDS[kind]
    page = pages.kind_page(row)
    assert row.formula in page
    assert "https://arxiv.org/abs/" in page or "arXiv" not in row.source
    assert page.count('"type":"scatter"') == len(pages.SIZES)
    straight = [one.y for one in pages.slices(pages.example(kind))]
    assert (len(set(straight)) == 1) == kind.elementwise or kind.linear


def test_the_table_names_every_kind(pages: ModuleType) -> None:
    listed = pages.index()
    assert all(f"`{kind.value}`" in listed for kind in KINDS)
    assert all(f"`{name}`" in pages.placements() for name in pages.PLACEMENTS)
