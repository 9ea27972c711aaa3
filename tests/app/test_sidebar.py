"""What the sidebar says of models that no stored result speaks of."""

from __future__ import annotations

import pytest
from explorer import sidebar

from normlens.models import list_models, open_model
from normlens.provenance import scale_kind

LISTED = {entry.kind: entry.id for entry in list_models() if entry.origin == "bundled"}


def test_every_kind_that_is_told_from_the_list_is_in_it() -> None:
    assert set(sidebar._LISTED) <= set(LISTED)


@pytest.mark.parametrize("kind", sorted(sidebar._LISTED))
def test_the_list_says_the_kind_that_opening_finds(kind: str) -> None:
    assert sidebar._LISTED[kind] == scale_kind(open_model(LISTED[kind]))
