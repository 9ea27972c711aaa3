"""Results as plotly figures: always a list of models, of which one is the special case.

Figure functions are named by the declarations (``module:function``), take one Result and
return one figure. Those that draw a part of the model, such as one head, also take which.
No torch.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable

import plotly.graph_objects as go

from normlens import catalog
from normlens.errors import UnknownName
from normlens.results import Result

__all__ = ["draw", "followed", "of"]


def draw(result: Result, name: str, **chosen: int | str) -> go.Figure:
    """One figure of a result, by its declared name (``scale:by_site``).

    Args:
        result: of any number of models.
        name: as declared.
        chosen: part of the model, by the fields of a selection (``layer=3, head=0``); a figure
            takes those it follows (:func:`followed`) and leaves the rest.

    Raises:
        UnknownName: the result's analysis declares no such figure; the message lists them.
    """
    declared = catalog.get(result.analysis).figures
    if name not in declared:
        raise UnknownName(
            f"{result.analysis} has no figure {name!r}; its figures: {', '.join(declared)}"
        )
    taken = {field: chosen[field] for field in followed(name) if field in chosen}
    return _function(name)(result, **taken)


def followed(name: str) -> tuple[str, ...]:
    """The fields of a selection that a figure draws, e.g. ``("layer", "head")``; often none."""
    return tuple(inspect.signature(_function(name)).parameters)[1:]


def of(result: Result) -> dict[str, go.Figure]:
    """Every figure of a result, by its declared name and in declaration order."""
    return {name: draw(result, name) for name in catalog.get(result.analysis).figures}


def _function(name: str) -> Callable[..., go.Figure]:
    module, function = name.split(":")
    return getattr(importlib.import_module(f"normlens.figures.{module}"), function)
