"""How an analysis is declared: everything about it but its mathematics. No torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from normlens.results import TableSchema

Topic = Literal["norms", "attention", "outliers", "attribution", "depth", "output", "other"]


class Need(StrEnum):
    """What a streaming analysis reads from each forward pass."""

    NORM_MOMENTS = "norm_moments"
    """Per site and token: mean and biased variance of the norm's input."""
    LOGITS = "logits"
    """Logits of every position; without it the output head is not run."""
    COMPONENTS = "components"
    """Head inputs of the output projection, MLP outputs, embeddings, final residual."""
    RESIDUAL = "residual"
    """Reduced where it is met: the residual stream before every block and after the last."""
    NORM_INPUT = "norm_input"
    """Reduced where it is met: the input of every norm."""
    NORM_OUTPUT = "norm_output"
    """Reduced where it is met: the output of every norm, gain and bias included."""
    ATTENTION = "attention"
    """Reduced where it is met: attention logits and probabilities of every layer."""
    STEPS = "steps"
    """Reduced where it is met: input and output of every block, together."""
    BRANCH_STEPS = "branch_steps"
    """The same, together with what attention and MLP of the block add."""

    @property
    def of_components(self) -> bool:
        """Whether it is found in the component view alone."""
        return self in (Need.COMPONENTS, Need.BRANCH_STEPS)


@dataclass(frozen=True)
class Citation:
    """Where a definition comes from: short reference, arXiv id or URL, and the place in it."""

    reference: str
    identifier: str
    place: str = ""


@dataclass(frozen=True)
class Extent:
    """What the cost of an analysis grows with.

    Attributes:
        sequences: of the corpus.
        live_sites: norms with a live scale.
    """

    sequences: int
    live_sites: int


def one_pass(parameters: Any, extent: Extent) -> int:
    """Every sequence once."""
    return extent.sequences


@dataclass(frozen=True)
class Analysis:
    """One row of the registry.

    Attributes:
        name: on the command line and in stores.
        title: on pages and reports.
        question: what a reader asks, one sentence.
        explanation: how to read the answer, with the formula (Markdown).
        parameters: frozen pydantic dataclass; every field has a description and bounds.
        runs_on: a corpus, or one prompt.
        style: ``streaming`` shares the corpus pass, ``procedure`` runs passes of its own.
        needs: what a streaming analysis reads.
        tables: schemas of what it returns.
        figures: names of functions in ``normlens.figures`` (``module:function``).
        kernel: ``module:object`` under ``normlens.kernels``.
        citations: sources.
        compares: whether it sets the model against a reference model.
        forwards: of a procedure, how many forward passes of one sequence it makes, from its
            parameters and the extent; a backward pass counts as two. For estimates alone.
        prompt_parameter: of an analysis of one prompt, the parameter that holds it.
        topic: the subject whose page shows it; ``other`` has a page for all that is left.
        version: raised whenever numbers change.
    """

    name: str
    title: str
    question: str
    explanation: str
    parameters: type[Any]
    runs_on: Literal["corpus", "prompt"]
    style: Literal["streaming", "procedure"]
    needs: frozenset[Need]
    tables: tuple[TableSchema, ...]
    figures: tuple[str, ...]
    kernel: str
    citations: tuple[Citation, ...]
    compares: bool = False
    forwards: Callable[[Any, Extent], float] = one_pass
    prompt_parameter: str = "prompt"
    topic: Topic = "other"
    version: int = 1
