"""How an analysis is declared: everything about it but its mathematics. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from normlens.results import TableSchema


class Need(StrEnum):
    """What a streaming analysis reads from each forward pass."""

    NORM_MOMENTS = "norm_moments"
    """Per site and token: mean and biased variance of the norm's input."""
    LOGITS = "logits"
    """Logits of every position; without it the output head is not run."""
    COMPONENTS = "components"
    """Head inputs of the output projection, MLP outputs, embeddings, final residual."""


@dataclass(frozen=True)
class Citation:
    """Where a definition comes from: short reference, arXiv id or URL, and the place in it."""

    reference: str
    identifier: str
    place: str = ""


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
    version: int = 1
