"""Stored results are shown without torch, and the app imports what it may."""

from __future__ import annotations

import ast
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import normlens.workbench
from normlens.resources import app_path

ALLOWED = {
    "catalog",
    "comparison",
    "errors",
    "figures",
    "report",
    "resources",
    "results",
    "workbench",
}
"""Parts of normlens that the app may import."""

HEAVY = ("torch", "transformers", "transformer_lens", "streamlit")
MADE_TO_RUN = {"bundled_make"}
"""Modules of the workbench that are programs: they run models as soon as they are run."""

PROBE = """
import sys, importlib
for name in {names}:
    importlib.import_module("normlens.workbench." + name)
from normlens.workbench.bundled import CORPUS, PAIR, bundled_results
from normlens.workbench.stored import StoredResults
from normlens import figures
result = StoredResults([bundled_results()]).find("scale", PAIR, CORPUS).result
assert result is not None and figures.of(result)
print(*[name for name in {heavy} if name in sys.modules])
"""


def test_from_start_to_figure_without_torch() -> None:
    names = [module.name for module in pkgutil.iter_modules(normlens.workbench.__path__)]
    assert "stored" in names
    probe = PROBE.format(names=[n for n in names if n not in MADE_TO_RUN], heavy=HEAVY)
    done = subprocess.run([sys.executable, "-c", probe], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []


def parts(source: str) -> Iterator[str]:
    """What a module imports: the part of normlens, or the package."""
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            module = node.module or ""
            names = [f"{module}.{alias.name}" for alias in node.names]
        for name in names:
            top, _, rest = name.partition(".")
            yield f"normlens.{rest.partition('.')[0]}" if top == "normlens" else top


def forbidden(source: str) -> set[str]:
    """Imports that the app may not have."""
    allowed = {f"normlens.{part}" for part in ALLOWED}
    found = set(parts(source))
    return {name for name in found if name.startswith("normlens") and name not in allowed} | (
        found & {"torch", "transformers", "transformer_lens", "numpy", "scipy"}
    )


def test_the_app_imports_only_what_it_may() -> None:
    files = sorted(Path(app_path()).rglob("*.py"))
    assert files, "the app is there"
    offenders = {file.name: forbidden(file.read_text(encoding="utf-8")) for file in files}
    assert {name: found for name, found in offenders.items() if found} == {}


def test_the_check_sees_what_is_forbidden() -> None:
    assert forbidden("import torch") == {"torch"}
    assert forbidden("from normlens import catalog, models") == {"normlens.models"}
    assert forbidden("def f():\n    from normlens.kernels.scale import KERNEL") == {
        "normlens.kernels"
    }
    assert forbidden("from normlens.workbench.jobs import start") == set()


def test_what_a_first_page_needs_is_imported_ahead_and_is_no_framework() -> None:
    probe = """
import importlib, sys
from normlens.workbench.serve import first_needed
for module in first_needed():
    importlib.import_module(module)
print("torch" in sys.modules, "plotly.graph_objects" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", probe], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "False True"
