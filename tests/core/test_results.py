"""Results survive the disk, join along models, and refuse what does not fit."""

from __future__ import annotations

import dataclasses
import json
import math
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest

from normlens.errors import LoadError, OutputError, UsageError
from normlens.results import Check, Column, Headline, Result, TableSchema, concat
from normlens.store import ResultStore, renamed

SCHEMA = TableSchema(
    "t",
    "doc",
    (
        Column("model", "str", "", ""),
        Column("layer", "Int64", "", ""),
        Column("value", "float64", "nats", ""),
        Column("status", "str", "", ""),
    ),
)


def result(model: str = "a", value: float = 1.5, passed: bool = True) -> Result:
    table = pd.DataFrame(
        {
            "model": [model] * 2,
            "layer": [0, None],
            "value": [value, math.nan],
            "status": ["ok", "no_data"],
        }
    ).astype({"model": "str", "layer": "Int64", "status": "str"})
    return Result(
        analysis="demo",
        models=(model,),
        tables={"t": table},
        schemas={"t": SCHEMA},
        headline={model: (Headline("h", value, "nats", "doc", 3, math.nan, 2.0),)},
        checks={model: (Check("c", 1e-7, 1e-5, passed, "doc"),)},
        provenance={model: {"name": model, "seed": 1}},
        warnings=("careful",),
    )


def test_round_trip(tmp_path: Path) -> None:
    saved = result()
    saved.save(tmp_path / "r")
    loaded = Result.load(tmp_path / "r")
    pd.testing.assert_frame_equal(loaded.tables["t"], saved.tables["t"])
    assert loaded.schemas == saved.schemas
    assert loaded.checks == saved.checks
    headline = loaded.headline["a"][0]
    assert (headline.value, headline.n, headline.high) == (1.5, 3, 2.0)
    assert math.isnan(headline.low)
    assert loaded.warnings == ("careful",)


def test_saving_twice_is_refused(tmp_path: Path) -> None:
    result().save(tmp_path / "r")
    with pytest.raises(OutputError):
        result(value=9.0).save(tmp_path / "r")
    assert Result.load(tmp_path / "r").headline["a"][0].value == 1.5


@pytest.mark.parametrize("damage", ["missing", "truncated", "schema", "parquet"])
def test_damage_is_a_load_error(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "r"
    result().save(path)
    meta = path / "result.json"
    if damage == "missing":
        meta.unlink()
    elif damage == "truncated":
        meta.write_text(meta.read_text()[:40])
    elif damage == "schema":
        meta.write_text(json.dumps({**json.loads(meta.read_text()), "schema_version": 99}))
    else:
        (path / "t.parquet").write_bytes(b"no")
    with pytest.raises(LoadError):
        Result.load(path)


def test_concat_keeps_order_and_refuses_what_does_not_fit() -> None:
    both = concat([result("b"), result("a")])
    assert both.models == ("b", "a")
    assert list(both.tables["t"]["model"]) == ["b", "b", "a", "a"]
    assert both.passed
    assert not concat([result("b"), result("a", passed=False)]).passed
    with pytest.raises(UsageError, match="twice"):
        concat([result(), result()])
    other = dataclasses.replace(result("b"), analysis="other")
    with pytest.raises(UsageError, match="different analyses"):
        concat([result(), other])
    with pytest.raises(UsageError):
        concat([])


def test_store_returns_what_it_was_given_under_the_asked_name(tmp_path: Path) -> None:
    store, key = ResultStore(tmp_path), {"weights": "w", "seed": 0}
    assert store.load(key, "a") is None
    store.save(key, result())
    found = store.load(key, "other-name")
    assert found is not None
    assert found.models == ("other-name",)
    assert set(found.tables["t"]["model"]) == {"other-name"}
    assert store.load({**key, "seed": 1}, "a") is None
    assert ResultStore(None).load(key, "a") is None


def test_renaming_to_the_same_name_changes_nothing() -> None:
    original = result()
    assert renamed(original, "a") is original


HOSTILE = "<script>alert(1)</script>&\"'"


class Tags(HTMLParser):
    """The elements of a document, which must be closed in order, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.text: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.seen.append(f"{tag} open" if ("open", "") in attrs or ("open", None) in attrs else tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def shown(value: Result) -> Tags:
    return Tags(value._repr_html_())


def test_a_notebook_shows_the_numbers_and_the_checks() -> None:
    page = shown(concat([result("a"), result("b", value=-2.5)]))
    text = " ".join(" ".join(page.text).split())
    assert "demo a · b" in text
    assert "1.5 n = 3" in text
    assert "−2.5 n = 3" in text
    assert "nats" in text
    assert "✓ 2 of 2 checks passed" in text
    assert "⚠ careful" in text
    assert "details open" not in page.seen
    assert "no_data" in text


def test_a_notebook_shows_what_failed_and_what_is_missing() -> None:
    quantised = dataclasses.replace(
        result("a", passed=False),
        headline={
            "a": (
                Headline("k", math.nan, "1", "doc", 0),
                Headline("h", 1.5, "1", "", 2, 1.25, 2.0),
            )
        },
        provenance={"a": {"quantised_from": "Q4_1 GGUF"}},
        not_applicable={"b": "it has no norms"},
        models=("a", "b"),
    )
    page = shown(quantised)
    text = " ".join(" ".join(page.text).split())
    assert "a (dequantised from Q4_1 GGUF)" in text
    assert "no data n = 0" in text
    assert "1.5 [1.25, 2]" in text
    assert "✗ FAILED a: c" in text
    assert "details open" in page.seen
    assert "b: not applicable: it has no norms" in text


def test_a_notebook_runs_nothing_that_a_name_says() -> None:
    hostile = dataclasses.replace(
        result(HOSTILE),
        analysis=HOSTILE,
        warnings=(HOSTILE,),
        not_applicable={HOSTILE: HOSTILE},
        headline={HOSTILE: (Headline(HOSTILE, 1.0, HOSTILE, HOSTILE, 1),)},
        checks={HOSTILE: (Check(HOSTILE, 1.0, 2.0, True, HOSTILE),)},
        tables={HOSTILE: result(HOSTILE).tables["t"].rename(columns={"value": HOSTILE})},
        schemas={HOSTILE: dataclasses.replace(SCHEMA, doc=HOSTILE)},
    )
    page = shown(hostile)
    assert "script" not in page.seen
    assert sum(HOSTILE in text for text in page.text) >= 9
