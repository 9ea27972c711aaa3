"""What importing normlens costs, and that the tests' runtime checks are live."""

from __future__ import annotations

import subprocess
import sys

import jaxtyping
import pytest
import torch
from beartype.roar import BeartypeCallHintParamViolation

from normlens.norms import FixedScale
from normlens.results import Check
from normlens.tolerances import for_dtype

FRAMEWORKS = ("torch", "transformers", "transformer_lens", "streamlit")
HELP = """
sys.argv = ["normlens", "--help"]
from normlens.cli import main
try:
    main()
except SystemExit as stopped:
    assert not stopped.code, stopped.code
"""


def loaded_after(code: str) -> set[str]:
    """The frameworks that a fresh interpreter has loaded after running ``code``."""
    probe = f"import sys\n{code}\nprint(*[m for m in {FRAMEWORKS} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", probe], check=True, capture_output=True, text=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("import normlens", id="normlens"),
        pytest.param("import normlens; normlens.Result", id="Result"),
        pytest.param("import normlens.catalog", id="catalog"),
        pytest.param("import normlens.figures", id="figures"),
        pytest.param(HELP, id="--help"),
    ],
)
def test_loads_no_framework(code: str) -> None:
    assert loaded_after(code) == set()


def test_the_probe_sees_a_framework() -> None:
    assert "torch" in loaded_after("import normlens.norms")


def test_shapes_are_checked_while_testing() -> None:
    module = FixedScale(3, 2.0)
    module(torch.ones(5, 3))
    with pytest.raises(jaxtyping.TypeCheckError):
        module(torch.ones(5, 3, dtype=torch.int64))


def test_other_annotations_are_checked_too() -> None:
    assert for_dtype("component_sum", "float32") > 0
    with pytest.raises(BeartypeCallHintParamViolation):
        for_dtype("component_sum", 32)  # type: ignore[arg-type]
    with pytest.raises(BeartypeCallHintParamViolation):
        Check("name", "large", 1.0, True, "doc")  # type: ignore[arg-type]
