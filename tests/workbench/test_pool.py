"""Opened models are shared, few, and one caller at a time has each."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from normlens.models.lens import Lens
from normlens.records import Records
from normlens.workbench.choices import ModelChoice
from normlens.workbench.pool import ModelPool
from normlens.workbench.sources import Sources
from tests.workbench.small_store import write_models


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    root = tmp_path_factory.mktemp("models")
    write_models(root)
    return Sources(root)


LN, LNFREE = ModelChoice("ln"), ModelChoice("lnfree")
HALF = ModelChoice("ln", dtype="bfloat16")


def test_one_model_for_equal_choices_and_the_oldest_goes(sources: Sources) -> None:
    pool = ModelPool(most=2)
    first = pool.open(LN, sources)
    assert pool.open(ModelChoice("ln"), sources) is first
    assert pool.open(HALF, sources).placement.dtype == "bfloat16"
    assert pool.memory(LN) == 2 * pool.memory(HALF) > 0
    pool.open(LN, sources)
    pool.open(LNFREE, sources)
    assert pool.loaded() == (LN, LNFREE)
    pool.release(LN)
    assert pool.loaded() == (LNFREE,) and pool.memory(LN) == 0
    assert pool.open(LN, sources) is not first


def test_a_model_in_use_is_not_let_go(sources: Sources) -> None:
    pool = ModelPool(most=1)
    with pool.using(LN, sources) as held:
        assert pool.busy(LN)
        pool.open(LNFREE, sources)
        with pool.using(LN, sources) as again:
            assert again is held
    assert not pool.busy(LN)
    assert len(pool.loaded()) == 1


def test_a_failed_opening_leaves_nothing(sources: Sources, tmp_path: Path) -> None:
    pool = ModelPool()
    with pytest.raises(Exception, match="no model 'lm'"):
        pool.open(ModelChoice("lm"), sources)
    with pytest.raises(Exception, match="int3"):
        pool.open(ModelChoice("ln", dtype="int3"), sources)
    assert pool.loaded() == () and not pool.busy(ModelChoice("ln", dtype="int3"))


def test_the_second_caller_is_told_and_waits(sources: Sources) -> None:
    pool = ModelPool()
    inside, told, order = threading.Event(), threading.Event(), []

    def first() -> None:
        with pool.using(LN, sources):
            inside.set()
            assert told.wait(60)
            order.append("first")

    def second(into: list[Lens]) -> None:
        assert inside.wait(60)
        with pool.using(LN, sources, lambda name: (told.set(), order.append(name))[0]) as lens:
            order.append("second")
            into.append(lens)

    got: list[Lens] = []
    threads = [threading.Thread(target=first), threading.Thread(target=second, args=(got,))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert order == ["ln", "first", "second"]
    assert got == [pool.open(LN, sources)]


def test_a_check_describes_the_model_and_is_noted(sources: Sources, tmp_path: Path) -> None:
    pool = ModelPool(store=tmp_path)
    check = pool.check(LNFREE, sources)
    assert check.verified and check.kind == "scale_free" and len(check.sites) == 5
    assert dict(check.facts)["verified"] == "5 of 5 norms recomputed from their spec"
    assert pool.check(LN, sources).kind == "live"
    noted = {record.weights_sha256 for record in Records(tmp_path).models()}
    assert check.weights_sha256 in noted and len(noted) == 2
