"""The table of tolerances is complete, ordered and refuses what it does not have."""

from __future__ import annotations

import pytest

from normlens.tolerances import DTYPES, TOLERANCES, Tolerance, for_dtype


@pytest.mark.parametrize("row", TOLERANCES, ids=lambda row: row.name)
def test_rows_have_a_reason_and_loosen_with_precision(row: Tolerance) -> None:
    assert row.reason
    exact, single, half, brain = (
        for_dtype(row.name, dtype) for dtype in ("float64", "float32", "float16", "bfloat16")
    )
    assert 0 < exact <= single <= half <= brain < 1


def test_names_are_unique() -> None:
    assert len({row.name for row in TOLERANCES}) == len(TOLERANCES)


def test_every_dtype_has_its_own_column() -> None:
    assert [for_dtype("site_residual", dtype) for dtype in DTYPES] == [1e-10, 2e-5, 3e-2, 4e-3]


@pytest.mark.parametrize(("name", "dtype"), [("nothing", "float32"), ("site_residual", "int8")])
def test_unknown_is_refused(name: str, dtype: str) -> None:
    with pytest.raises(ValueError, match=r"nothing|int8"):
        for_dtype(name, dtype)
