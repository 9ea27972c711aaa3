"""A Result as a fragment of HTML, as notebooks show it. No torch.

Colours are those of the notebook: text and lines take ``currentColor``, nothing has a
background, so that light and dark themes both stay readable. Everything is escaped.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pandas as pd
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

if TYPE_CHECKING:
    from normlens.results import Headline, Result

ROWS = 5

TEMPLATE = """\
{% set muted = "opacity:.7;font-size:.9em" %}
{% set cell = "text-align:left;padding:.2em .8em .2em 0;border-bottom:1px solid;"
  ~ "vertical-align:top" %}
<div style="max-width:100%;overflow-x:auto;color:inherit">
<p style="margin:.3em 0"><strong>{{ result.analysis }}</strong>
<span style="{{ muted }}">{{ models | join(" · ") }}</span></p>
{% for model, reason in result.not_applicable.items() %}
<p style="margin:.3em 0">{{ model }}: not applicable: {{ reason }}</p>
{% endfor %}
{% for warning in result.warnings %}
<p style="margin:.3em 0">⚠ {{ warning }}</p>
{% endfor %}
{% if names %}
<table style="border-collapse:collapse;color:inherit;background:none">
<thead><tr><th style="{{ cell }}">number</th><th style="{{ cell }}">unit</th>
{% for model in result.models %}<th style="{{ cell }}">{{ model }}</th>{% endfor %}
</tr></thead>
<tbody>
{% for name, about in names.items() %}
<tr><td style="{{ cell }}" title="{{ about.doc }}">{{ name }}</td>
<td style="{{ cell }}">{{ about.unit if about.unit != "1" else "" }}</td>
{% for model in result.models %}
{% set found = headlines[model].get(name) %}
<td style="{{ cell }}">{% if found %}{{ found | value }}
<span style="{{ muted }}">n = {{ "{:,}".format(found.n) }}</span>{% else %}–{% endif %}</td>
{% endfor %}
</tr>
{% endfor %}
</tbody></table>
{% endif %}
{% if checks %}
<details style="margin:.3em 0"{{ "" if result.passed else " open" }}><summary>
{{ "✓" if result.passed else "✗" }} {{ passed }} of {{ checks | length }} checks passed</summary>
{% for model, check in checks %}
<div title="{{ check.doc }}">{{ "✓" if check.passed else "✗ FAILED" }} {{ model }}:
{{ check.name }} {{ "%.3g" | format(check.value) }}
<span style="{{ muted }}">(tolerance {{ "%.3g" | format(check.tolerance) }})</span></div>
{% endfor %}
</details>
{% endif %}
{% for name, table in result.tables.items() if table | length %}
<details style="margin:.3em 0"><summary>table <code>{{ name }}</code>
<span style="{{ muted }}">{{ "{:,}".format(table | length) }} rows,
{{ table.columns | length }} columns; {{ result.schemas[name].doc }}</span></summary>
{{ table | rows }}
</details>
{% endfor %}
</div>
"""


def result_html(result: Result) -> str:
    """Title, models, warnings, headline numbers, checks, and the first rows of every table.

    A value is shown as ``value [low, high]`` with its 95 % interval where there is one and
    as ``no data`` where n = 0; a failed check opens the list of checks.
    """
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(value=_value, rows=_rows)
    headlines = {
        model: {headline.name: headline for headline in result.headline.get(model, ())}
        for model in result.models
    }
    checks = [(model, check) for model, made in result.checks.items() for check in made]
    return environment.from_string(TEMPLATE).render(
        result=result,
        models=[_described(result, model) for model in result.models],
        headlines=headlines,
        names={name: h for by_name in headlines.values() for name, h in by_name.items()},
        checks=checks,
        passed=sum(check.passed for _, check in checks),
    )


def _described(result: Result, model: str) -> str:
    """The model's name, and that its weights were once quantised where they were."""
    origin = result.provenance.get(model, {}).get("quantised_from")
    return f"{model} (dequantised from {origin})" if origin else model


def _value(headline: Headline) -> str:
    if headline.n == 0:
        return "no data"
    value = _number(headline.value)
    if math.isnan(headline.low) or math.isnan(headline.high):
        return value
    return f"{value} [{_number(headline.low)}, {_number(headline.high)}]"


def _rows(table: pd.DataFrame) -> Markup:
    """The first rows; pandas escapes names and cells."""
    head = table.head(ROWS).astype(object)
    shown = head.where(head.notna(), "–")
    return Markup(shown.to_html(index=False, border=0, escape=True, float_format=_number))


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.4g}".replace("-", "−")
