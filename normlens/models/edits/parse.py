"""Edits from words: ``rms``, ``rotate``, ``kind=rms_norm@pre_mlp``, ``freeze=mean@0-2``.

STEP = NAME[=VALUE][@SITES]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from normlens.errors import UsageError
from normlens.models.edits.crms import ToCrms
from normlens.models.edits.edit import Edit
from normlens.models.edits.eps import DecodeEps, EncodeEps
from normlens.models.edits.fold import Fold
from normlens.models.edits.freeze import Freeze
from normlens.models.edits.rms import ToRms
from normlens.models.edits.rotate import Rotate
from normlens.models.edits.swap import SwapKind, why_no_swap
from normlens.models.edits.untie import Untie
from normlens.norms import NormKind
from normlens.norms.fields import DEFAULT_ALPHA
from normlens.text.sequences import Sequences

MEASURED = ("mean", "apart", "position")


@dataclass(frozen=True)
class Step:
    """One word of the request, taken apart; ``value`` and ``sites`` are None where not given."""

    name: str
    value: str | None
    sites: str | None

    @property
    def measures(self) -> bool:
        """Whether it needs text to measure a scale on."""
        return self.name == "freeze" and self.value in (None, *MEASURED)


@dataclass(frozen=True)
class Given:
    """What steps may need beside their word."""

    sites: str
    seed: int
    sequences: Sequences | None


def parse_step(text: str) -> Step:
    """Take a word apart.

    Raises:
        UsageError: no such step, or it takes no value or no sites.
    """
    rest, at, sites = text.partition("@")
    name, equals, value = rest.partition("=")
    if name not in STEPS:
        raise UsageError(f"no edit {name!r}; choose from {', '.join(STEPS)}")
    if equals and name not in WITH_VALUE:
        raise UsageError(f"{name} takes no value; write {name}")
    if at and name not in WITH_SITES:
        raise UsageError(f"{name} changes the whole model; write it without @{sites}")
    if (equals and not value) or (at and not sites):
        raise UsageError(f"{text!r} is not complete; write NAME[=VALUE][@SITES]")
    return Step(name, value or None, sites or None)


def edit_of(step: Step, given: Given) -> Edit:
    """The edit that a step asks for.

    Raises:
        UsageError: its value cannot be read.
    """
    return STEPS[step.name](step, given)


def _fold(step: Step, given: Given) -> Edit:
    return Fold(step.sites or given.sites)


def _rotate(step: Step, given: Given) -> Edit:
    if step.value is None:
        return Rotate(given.seed)
    if not step.value.isdigit():
        raise UsageError(f"rotate={step.value}: a seed is a whole number from 0")
    return Rotate(int(step.value))


def _kind(step: Step, given: Given) -> Edit:
    name, colon, slope = (step.value or "").partition(":")
    kinds = [kind.value for kind in NormKind if why_no_swap(kind) is None]
    if name not in kinds:
        raise UsageError(f"kind={name}: write kind=NAME with one of {', '.join(kinds)}")
    alpha = _number(step, slope) if colon else DEFAULT_ALPHA
    return SwapKind(NormKind(name), step.sites or given.sites, alpha)


def _freeze(step: Step, given: Given) -> Edit:
    sites = step.sites or given.sites
    if step.measures:
        how = step.value or "mean"
        assert how == "mean" or how == "apart" or how == "position"
        return Freeze(how, sites, given.sequences)
    return Freeze(_number(step, step.value or ""), sites)


def _number(step: Step, text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        options = f"{', '.join(MEASURED)} or a number" if step.name == "freeze" else "a number"
        raise UsageError(f"{step.name}={step.value}: give {options}") from error


STEPS: Mapping[str, Callable[[Step, Given], Edit]] = {
    "untie": lambda step, given: Untie(),
    "fold": _fold,
    "rms": lambda step, given: ToRms(),
    "crms": lambda step, given: ToCrms(),
    "rotate": _rotate,
    "clean": lambda step, given: DecodeEps(),
    "eps": lambda step, given: EncodeEps(),
    "freeze": _freeze,
    "kind": _kind,
}
"""Every step by its name."""

WITH_VALUE = frozenset({"rotate", "freeze", "kind"})
WITH_SITES = frozenset({"fold", "freeze", "kind"})

__all__ = ["STEPS", "Given", "Step", "edit_of", "parse_step"]
