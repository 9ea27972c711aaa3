"""The explorer's server process: ``python -m normlens.workbench.serve run app/main.py ...``.

What a page of stored results needs is imported before the server answers, so the first reader does
not wait for it. Torch is left out: it takes seconds, and stored results need none.
"""

from __future__ import annotations

import importlib

from normlens import catalog


def first_needed() -> list[str]:
    """Modules that a first page imports: results, figures and reports."""
    figures = {name.partition(":")[0] for analysis in catalog.ALL for name in analysis.figures}
    return [
        "plotly.graph_objects",
        "plotly.subplots",
        "normlens.report.building",
        "normlens.report.snippet",
        "normlens.report.standalone",
        "normlens.workbench.pool",
        "normlens.workbench.stored",
        *(f"normlens.figures.{module}" for module in sorted(figures)),
    ]


def main() -> None:
    """Import ahead, then hand over to ``streamlit`` with the arguments of this process."""
    from streamlit.web.cli import main as streamlit

    for module in first_needed():
        importlib.import_module(module)
    streamlit()


if __name__ == "__main__":
    main()
