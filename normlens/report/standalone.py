"""One figure as a page of its own that needs nothing else."""

from __future__ import annotations

import html

import plotly.graph_objects as go
import plotly.offline

from normlens.figures.theme import FONT, PAPER
from normlens.report.export import figure_json

_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src \
'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; font-src data:">
<title>{title}</title>
<style>body {{ margin: 0; padding: 8px; background: {paper}; font-family: {font}; }}</style>
</head>
<body>
<noscript>{title}: this chart needs JavaScript.</noscript>
<div id="figure"></div>
<script type="application/json" id="spec">{spec}</script>
<script>{plotly}</script>
<script>
const spec = JSON.parse(document.getElementById("spec").textContent);
Plotly.newPlot("figure", spec.data, {{ ...spec.layout, autosize: true }}, {{
  responsive: true, displaylogo: false, showSendToCloud: false,
  toImageButtonOptions: {{ format: "svg", filename: "normlens" }},
}});
</script>
</body>
</html>
"""


def standalone_html(figure: go.Figure, title: str) -> str:
    """A document with the figure, plotly.js inside and no address outside.

    Args:
        figure: as drawn, for a light page.
        title: of the window; escaped.
    """
    return _PAGE.format(
        title=html.escape(title),
        paper=PAPER,
        font=FONT,
        spec=figure_json(figure),
        plotly=plotly.offline.get_plotlyjs(),
    )
