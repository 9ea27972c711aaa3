"""Results as plotly figures: always a list of models, of which one is the special case.

Figure functions are named by the declarations (``module:function``), take one Result and
return one figure. No torch.
"""

from __future__ import annotations

import importlib

import plotly.graph_objects as go

from normlens import catalog
from normlens.results import Result

__all__ = ["of"]


def of(result: Result) -> dict[str, go.Figure]:
    """Every figure of a result, by its declared name and in declaration order."""
    figures: dict[str, go.Figure] = {}
    for name in catalog.get(result.analysis).figures:
        module, function = name.split(":")
        draw = getattr(importlib.import_module(f"normlens.figures.{module}"), function)
        figures[name] = draw(result)
    return figures
