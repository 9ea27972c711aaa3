"""Stored results are found for what is chosen now, and never for anything else."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path

import pandas as pd
import pytest

from normlens import catalog, records
from normlens.errors import BadText, UsageError
from normlens.models.lineage import weight_cosine
from normlens.models.opening import open_model
from normlens.records import Records
from normlens.results import Result
from normlens.workbench.choices import CorpusChoice, ModelChoice
from normlens.workbench.sources import Sources
from normlens.workbench.stored import NO_RESULT, UNKNOWN_MODEL, StoredResults
from tests.workbench.small_store import corpus_of, fill, train_again, write_models, write_text

NAMES = ("scale", "divergence")


@dataclasses.dataclass(frozen=True)
class Place:
    """A model root, a store and a text of one test."""

    root: Path

    @property
    def store(self) -> Path:
        return self.root / "store"

    @property
    def corpus(self) -> CorpusChoice:
        return corpus_of(self.root / "text.txt")

    def model(self, name: str, **how: object) -> ModelChoice:
        return ModelChoice(str(self.root / "models" / name), **how)  # pyright: ignore[reportArgumentType]

    @property
    def pair(self) -> tuple[ModelChoice, ModelChoice]:
        return self.model("ln"), self.model("lnfree")

    def stored(self, *more: Path) -> StoredResults:
        return StoredResults([self.store, *more], Sources(self.root / "models"))


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Place, list[Result]]:
    place = Place(tmp_path_factory.mktemp("place"))
    write_models(place.root / "models")
    write_text(place.root / "text.txt")
    return place, fill(place.store, place.pair, NAMES, place.corpus)


@pytest.fixture
def place(filled: tuple[Place, list[Result]], tmp_path: Path) -> Place:
    """A place of its own to spoil; times of change differ, contents do not."""
    shutil.copytree(filled[0].root, tmp_path / "place")
    moved = Place(tmp_path / "place")
    fill(moved.store, moved.pair, ("scale",), moved.corpus)
    return moved


def test_what_was_run_is_found_as_it_was_shown(filled: tuple[Place, list[Result]]) -> None:
    place, made = filled
    for result in made:
        found = place.stored().find(result.analysis, place.pair, place.corpus)
        assert found.missing == () and found.result is not None
        assert found.result.models == ("ln", "lnfree")
        assert repr(found.result.headline) == repr(result.headline)
        assert found.result.provenance == result.provenance
        for name, table in result.tables.items():
            pd.testing.assert_frame_equal(found.result.tables[name], table)


def test_slots_decide_order_names_and_cosine(filled: tuple[Place, list[Result]]) -> None:
    place, _ = filled
    a, b = place.pair
    expected = weight_cosine(open_model(a.source), open_model(b.source))
    assert -1 < expected < 1
    found = place.stored().find("scale", [b, a, b], place.corpus).result
    assert found is not None
    assert found.models == ("lnfree", "ln", "lnfree #2")
    cosines = [found.provenance[m]["weight_cosine_to_reference"] for m in found.models]
    assert cosines == [1.0, pytest.approx(expected, abs=1e-12), 1.0]


def test_divergence_belongs_to_its_reference(filled: tuple[Place, list[Result]]) -> None:
    place, _ = filled
    a, b = place.pair
    assert place.stored().find("divergence", [b, a], place.corpus).result is None
    found = place.stored().find("divergence", [b], place.corpus, reference=a)
    assert found.result is not None and found.result.provenance["lnfree"]["reference"] == "ln"


@pytest.mark.parametrize("change", ["context", "sequences", "bos", "text"])
def test_another_corpus_is_not_found(filled: tuple[Place, list[Result]], change: str) -> None:
    place, _ = filled
    other = write_text(place.root / "other.txt", repeats=13)
    value = {"context": 16, "sequences": 5, "bos": "none", "text": str(other)}[change]
    corpus = dataclasses.replace(place.corpus, **{change: value})
    found = place.stored().find("scale", place.pair, corpus)
    assert found.result is None and found.reasons == (NO_RESULT, NO_RESULT)


def test_a_text_changed_in_place_is_another(place: Place) -> None:
    text = place.root / "text.txt"
    before = text.read_bytes()
    assert place.stored().find("scale", place.pair, place.corpus).missing == ()
    text.write_bytes(before.replace(b"key", b"cat"))
    assert place.stored().find("scale", place.pair, place.corpus).result is None
    text.write_bytes(before)
    assert place.stored().find("scale", place.pair, place.corpus).missing == ()
    text.unlink()
    with pytest.raises(BadText):
        place.stored().find("scale", place.pair, place.corpus)


def test_a_model_trained_again_in_place_has_no_results(place: Place) -> None:
    a, b = place.pair
    stored = place.stored()
    assert stored.find("scale", [a, b], place.corpus).missing == ()
    kept = place.root / "kept"
    shutil.copytree(a.source, kept)
    train_again(Path(a.source), seed=2)
    assert [p.stat().st_size for p in sorted(Path(a.source).glob("*.safetensors"))] == [
        p.stat().st_size for p in sorted(kept.glob("*.safetensors"))
    ], "the case that sizes alone would miss"
    found = stored.find("scale", [a, b], place.corpus)
    assert found.missing == (a,) and found.reasons == (UNKNOWN_MODEL,)
    assert found.result is not None and found.result.models == ("lnfree",)

    fill(place.store, [a], ["scale"], place.corpus)
    fresh = stored.find("scale", [a], place.corpus).result
    assert fresh is not None
    new = open_model(a.source).identity.weights_sha256
    assert fresh.provenance["ln"]["weights_sha256"] == new

    shutil.rmtree(a.source)
    shutil.copytree(kept, a.source)
    assert stored.find("scale", [a], place.corpus).reasons == (UNKNOWN_MODEL,)


def test_the_time_of_a_small_file_does_not_matter_and_of_a_large_one_does(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, _ = place.pair
    (weights,) = Path(a.source).glob("*.safetensors")
    os.utime(weights, ns=(1, 1))
    assert place.stored().find("scale", [a], place.corpus).missing == ()
    monkeypatch.setattr(records, "HASHED_BYTES", 0)
    fill(place.store, [a], ["scale"], place.corpus)
    assert place.stored().find("scale", [a], place.corpus).missing == ()
    os.utime(weights, ns=(2, 2))
    assert place.stored().find("scale", [a], place.corpus).missing == (a,)


def test_portable_notes_know_a_model_by_its_content(place: Place) -> None:
    a, _ = place.pair
    shipped = place.root / "shipped"
    shutil.move(place.store, shipped)
    assert place.stored().find("scale", [a], place.corpus).missing == (a,)
    notes = Records(shipped)
    for record in list(notes.models()):
        notes.save_model(record.portable())
    for file in Path(a.source).iterdir():
        os.utime(file, ns=(1, 1))
    assert place.stored(shipped).find("scale", [a], place.corpus).missing == ()
    train_again(Path(a.source), seed=2)
    assert place.stored(shipped).find("scale", [a], place.corpus).missing == (a,)


def test_parameters_device_dtype_and_version_must_fit(
    filled: tuple[Place, list[Result]], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, _ = filled
    a, _ = place.pair
    stored = place.stored()
    default = dataclasses.asdict(catalog.get("scale").parameters())
    assert stored.find("scale", [a], place.corpus, parameters=default).missing == ()
    other = {"per_token": not default["per_token"]}
    assert stored.find("scale", [a], place.corpus, parameters=other).missing == (a,)
    with pytest.raises(UsageError, match="nonsense"):
        stored.find("scale", [a], place.corpus, parameters={"nonsense": 1})
    for how in ({"device": "cuda"}, {"dtype": "bfloat16"}, {"convert": True}):
        choice = place.model("ln", **how)
        assert stored.find("scale", [choice], place.corpus).missing == (choice,)
    newer = dataclasses.replace(catalog.get("scale"), version=99)
    monkeypatch.setattr(catalog, "ALL", (newer,))
    assert stored.find("scale", [a], place.corpus).reasons == (NO_RESULT,)


def test_words_may_change_and_columns_may_not(
    filled: tuple[Place, list[Result]], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, _ = filled
    declared = catalog.get("scale")
    first, *rest = declared.tables
    column = dataclasses.replace(first.columns[-1], doc="said in other words")
    reworded = dataclasses.replace(first, columns=(*first.columns[:-1], column))
    monkeypatch.setattr(catalog, "ALL", (dataclasses.replace(declared, tables=(reworded, *rest)),))
    found = place.stored().find("scale", place.pair, place.corpus).result
    assert found is not None and column in found.schemas[first.name].columns
    other = dataclasses.replace(
        first, columns=(*first.columns[:-1], dataclasses.replace(column, unit="bits"))
    )
    monkeypatch.setattr(catalog, "ALL", (dataclasses.replace(declared, tables=(other, *rest)),))
    assert place.stored().find("scale", place.pair, place.corpus).result is None


def test_the_user_store_comes_first_and_new_results_are_seen(
    place: Place, filled: tuple[Place, list[Result]]
) -> None:
    a, _ = place.pair
    stored = place.stored(filled[0].store)
    path = stored.find("scale", [a], place.corpus).paths[0]
    assert path.is_relative_to(place.store)
    shutil.rmtree(path)
    assert stored.find("scale", [a], place.corpus).paths[0].is_relative_to(filled[0].store)
    fill(place.store, [a], ["scale"], place.corpus)
    assert stored.find("scale", [a], place.corpus).paths[0].is_relative_to(place.store)
    assert set(stored.available()["analysis"]) == set(NAMES)


def test_damaged_entries_are_passed_over(place: Place) -> None:
    (place.store / "results" / "junk").mkdir()
    (place.store / "results" / "junk" / "result.json").write_text("{}")
    (place.store / "known" / "models" / "junk.json").write_text("[")
    assert place.stored().find("scale", place.pair, place.corpus).missing == ()
