"""Every analysis on every kind of norm and every placement: right, or not applicable in words.

All analyses of a model run at once. An analysis that applies must pass its checks and show
no number without data behind it; one that does not must name the reason that is expected.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest

from normlens import catalog, runner
from normlens.results import Result
from tests.contract.every_norm import KINDS, OPAQUE, SCHEMES, lens_of
from tests.contract.test_streaming_contract import NOT_BY_N, corpus, reference

NAMES = [analysis.name for analysis in catalog.ALL]
PARAMETERS: dict[str, dict[str, Any]] = {
    "outliers": {"rotate": True},
    "attention-entropy": {"sink_positions": 4},
    "outlier-ablation": {"sink_tokens": 4, "random_seeds": 1},
    "gradients": {"sequences": 2},
    "prompt-attribution": {"prompt": "It was a dark and stormy night"},
    # Random models tell two prompts apart by little.
    "prompt-patching": {"smallest_gap": 1e-6},
}

ATTRIBUTIONS = ("logit-attribution", "prompt-attribution")
SCALES = ("scale", "prompt-scale")
ATTENTIONS = ("attention-entropy", "prompt-attention")
OF_COMPONENTS = (*ATTRIBUTIONS, "branches", "prompt-patching")
ELEMENTWISE = ("dyt", "eln")
BATCH = ("batch_norm", "power_norm", "unified_norm")
OPTIONAL = ("tokens", "replicates")
CONSTANT = (*BATCH, "fixed_scale", "fixed_scale by position", "identity")
ON_STREAM = ("post", "hybrid", "deepnorm", "ngpt-llama")


def refused(name: str) -> dict[str, str]:
    """By analysis, what the reason must say where it does not apply to a model."""
    if name in ELEMENTWISE:
        bends = f"is {name}: it bends every element by itself"
        return {
            **dict.fromkeys(SCALES, "no norm that divides tokens"),
            "freeze-sweep": f"{name} acts on each element alone",
            **dict.fromkeys(ATTRIBUTIONS, bends),
        }
    if name == OPAQUE:
        return {
            **dict.fromkeys(SCALES, "its norms are opaque"),
            "freeze-sweep": "no norm of opaque has a known live scale",
            "curves": "no norm whose kind is known",
            **dict.fromkeys(ATTRIBUTIONS, "is opaque: its scale is unknown"),
        }
    if name in CONSTANT:
        return {"freeze-sweep": "scale-free already"}
    if name in ON_STREAM:
        return dict.fromkeys(OF_COMPONENTS, "norms stand on the residual stream")
    if name == "no-final-norm":
        return dict.fromkeys(OF_COMPONENTS, "no norm stands between")
    return dict.fromkeys(ATTENTIONS, "need not add up to 1") if name == "relu" else {}


@cache
def results(name: str) -> dict[str, Result]:
    found = runner.run(NAMES, lens_of(name), corpus(), parameters=PARAMETERS, reference=reference())
    return {result.analysis: result for result in found}


@pytest.mark.parametrize("name", [*KINDS, *SCHEMES])
def test_every_analysis_is_right_or_says_why_not(name: str) -> None:
    expected = refused(name)
    for analysis, result in results(name).items():
        reason = result.not_applicable.get(name, "")
        assert expected.get(analysis, "") in reason, (analysis, reason)
        assert bool(reason) == (analysis in expected), (analysis, reason)
        if reason:
            assert name in reason, reason
            assert all(table.empty for table in result.tables.values())
        else:
            assert_sound(name, result)


def assert_sound(name: str, result: Result) -> None:
    failed = [check for check in result.checks[name] if not check.passed]
    assert not failed, (result.analysis, failed)
    assert (next(iter(result.tables.values()))["status"] == "ok").any(), result.analysis
    for table, frame in result.tables.items():
        assert len(frame) or table in OPTIONAL, (result.analysis, table)
        if "n" not in frame:
            continue
        without = frame["n"] == 0
        for column in frame.select_dtypes("float64"):
            if (result.analysis, table, column) not in NOT_BY_N:
                wrong = frame[column].isna() != without
                assert not wrong.any(), (result.analysis, table, column, frame[wrong])
    assert result.headline[name]
    for headline in result.headline[name]:
        assert math.isnan(headline.value) == (headline.n == 0), (result.analysis, headline)
