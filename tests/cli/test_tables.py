"""What the terminal says about a result."""

from __future__ import annotations

import dataclasses

import pytest

from normlens.cli.tables import print_result
from normlens.results import Check, Headline, Result

RESULT = Result(
    analysis="demo",
    models=("a",),
    tables={},
    schemas={},
    headline={"a": (Headline("h", 1.5, "nats", "doc", 3),)},
    checks={"a": (Check("c", 1e-7, 1e-5, True, "doc"),)},
    provenance={"a": {"quantised_from": None}},
)


def test_dequantised_weights_are_announced(capsys: pytest.CaptureFixture[str]) -> None:
    print_result(RESULT)
    assert "dequantised" not in capsys.readouterr().out
    origin = {"a": {"quantised_from": "Q4_K_M [GGUF]"}}
    print_result(dataclasses.replace(RESULT, provenance=origin))
    assert "warning: a was dequantised from Q4_K_M [GGUF]" in capsys.readouterr().out
