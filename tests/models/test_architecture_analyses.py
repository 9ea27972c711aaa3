"""Analyses over depth and of outliers on every architecture: checks hold, or a reason is given."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch

from normlens import runner
from normlens.hooks import hook_count
from normlens.models.families import family_of
from normlens.models.identity import weights_sha256
from normlens.results import Result
from tests.architectures import ARCHITECTURES
from tests.kernels.harness import random_rows, sequences_of
from tests.models.expected_architectures import opened

Record = Callable[[str, object], None]

pytestmark = pytest.mark.components

NAMES = ("residual", "branches", "gradients", "outliers", "outlier-ablation")
ON_STREAM = ("opt-post", "bert", "bert-encoder", "decoder-post", "decoder-hybrid", "decoder-ngpt")

each_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES)


@cache
def results(architecture: str) -> dict[str, Result]:
    corpus = sequences_of(random_rows(3, (9, 4, 7)), extra=2)
    found = runner.run(NAMES, opened(architecture), corpus, batch_size=2)
    return dict(zip(NAMES, found, strict=True))


def applies(architecture: str, name: str, record: Record) -> bool:
    """Whether the analysis applies; if so its checks hold and its first table has numbers."""
    found = results(architecture)[name]
    if found.not_applicable:
        (reason,) = found.not_applicable.values()
        record("not_applicable", reason)
        return False
    (checks,) = found.checks.values()
    assert found.passed, [check for check in checks if not check.passed]
    table = next(iter(found.tables.values()))
    assert (table["status"] == "ok").any()
    return True


@pytest.mark.architecture_cell("residual")
@each_architecture
def test_residual(architecture: str, record_property: Record) -> None:
    assert applies(architecture, "residual", record_property)


@pytest.mark.architecture_cell("branches")
@each_architecture
def test_branches(architecture: str, record_property: Record) -> None:
    assert applies(architecture, "branches", record_property) == (architecture not in ON_STREAM)


@pytest.mark.architecture_cell("gradients")
@each_architecture
def test_gradients(architecture: str, record_property: Record) -> None:
    causal = family_of(opened(architecture).model).causal
    assert applies(architecture, "gradients", record_property) == causal


@pytest.mark.architecture_cell("outliers")
@each_architecture
def test_outliers(architecture: str, record_property: Record) -> None:
    assert applies(architecture, "outliers", record_property)


@pytest.mark.architecture_cell("outlier ablation")
@each_architecture
def test_outlier_ablation(architecture: str, record_property: Record) -> None:
    causal = family_of(opened(architecture).model).causal
    assert applies(architecture, "outlier-ablation", record_property) == causal


@each_architecture
def test_the_model_is_left_as_it_was(architecture: str) -> None:
    results(architecture)
    lens = opened(architecture)
    assert hook_count(lens.model) == 0
    assert weights_sha256(lens.model) == lens.identity.weights_sha256
    assert not any(p.requires_grad for p in lens.model.parameters())
    assert torch.is_grad_enabled()
