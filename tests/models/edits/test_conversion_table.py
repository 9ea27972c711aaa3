"""Every exact conversion on every architecture: within tolerance, or refused for its reason."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from normlens import tolerances
from normlens.errors import NotApplicable
from normlens.models import Lens, open_model
from normlens.models.edits import Conversion as ConvertedLens
from normlens.models.edits import convert
from normlens.models.edits.precision import coarsest
from normlens.models.edits.saving import save_lens
from tests.architectures import ARCHITECTURES
from tests.models.edits.conversions import CONVERSIONS, Conversion, edits_of, error
from tests.models.expected_architectures import opened

# What one worker has opened and converted serves every test.
pytestmark = pytest.mark.xdist_group("conversions")

COLUMNS = [
    pytest.param(row, id=row.column, marks=pytest.mark.conversion_cell(row.column))
    for row in CONVERSIONS
]


@cache
def converted(architecture: str, column: str) -> ConvertedLens:
    """A conversion that applies."""
    (conversion,) = (row for row in CONVERSIONS if row.column == column)
    lens = opened(architecture)
    return convert(lens, *edits_of(conversion, lens))


@cache
def opened_in_float64(architecture: str) -> Lens:
    return open_model(ARCHITECTURES[architecture](), tokenizer=None, dtype="float64")


@pytest.mark.parametrize("conversion", COLUMNS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_conversion(
    architecture: str, conversion: Conversion, record_property: Callable[[str, object], None]
) -> None:
    lens = opened(architecture)
    edits = edits_of(conversion, lens)
    if architecture in conversion.refused:
        with pytest.raises(NotApplicable, match=conversion.refused[architecture]) as caught:
            convert(lens, *edits)
        record_property("not_applicable", str(caught.value).replace(lens.identity.name, "it"))
        return
    done = converted(architecture, conversion.column)
    moved = error(lens, done.lens)
    record_property("measured", moved)
    assert moved <= tolerances.for_dtype("conversion_logits", "float32")
    assert all(check.exact and check.passed for check in done.checks)
    assert done.lens.edits == tuple(edit.name for edit in edits)


@pytest.mark.parametrize("conversion", CONVERSIONS, ids=lambda row: row.column)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_conversion_in_float64(architecture: str, conversion: Conversion) -> None:
    if architecture in conversion.refused:
        return
    lens = opened_in_float64(architecture)
    after = convert(lens, *edits_of(conversion, lens)).lens
    dtype = coarsest(lens, after)
    assert error(lens, after) <= tolerances.for_dtype("conversion_logits", dtype)
    in_float32 = any(site.spec.compute_dtype == "float32" for site in lens.sites)
    assert in_float32 or dtype == "float64"


@pytest.mark.conversion_cell("saved and opened again")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_saving(
    architecture: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """The last conversion that applies, through a directory; else the model as it is."""
    lens = opened(architecture)
    applicable = [row for row in CONVERSIONS if architecture not in row.refused]
    for number, row in enumerate(applicable[-2:] or [None]):
        after = lens if row is None else converted(architecture, row.column).lens
        save_lens(after, tmp_path / str(number))
        again = open_model(tmp_path / str(number), tokenizer=None)
        assert error(after, again) <= 1e-7
        record_property("measured", error(lens, again))
        assert [site.spec.kind for site in again.sites] == [site.spec.kind for site in after.sites]
