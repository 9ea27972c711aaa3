"""One row of facts per kind of norm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from torch import nn

from normlens.norms.kind import NormKind
from normlens.norms.maps import NormMap
from normlens.norms.spec import NormSpec


class Coupling(StrEnum):
    """What an element of the output depends on besides its own element of the input."""

    TOKEN = "the other elements of its token"
    BATCH = "in training every token of the batch; in eval mode nothing"
    MEAN = "the mean of its token, where it is subtracted"
    NOTHING = "nothing"


@dataclass(frozen=True)
class KindRow:
    """What is known of a kind: for pages and tables, and what builds and evaluates it.

    Attributes:
        kind: whose row this is; its properties say whether it is linear and has a scale.
        title: the name in the literature.
        formula: the map in one line, d the width and s the scale.
        source: papers, with arXiv id and section or equation.
        eps: what the guard against division by zero is added to, or that there is none.
        couples: what an element of the output depends on.
        annihilates: the directions d with ``J d = 0``, in words.
        remark: what else a reader has to know; may be empty.
        norm_map: evaluates it.
        make: builds its module from a spec that has been checked, ignoring ``factor``.
    """

    kind: NormKind
    title: str
    formula: str
    source: str
    eps: str
    couples: Coupling
    annihilates: str
    norm_map: NormMap
    make: Callable[[NormSpec], nn.Module]
    remark: str = ""
