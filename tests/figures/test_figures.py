"""Every figure of every analysis: any number of models, missing data, hostile names."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterator
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import pytest

from normlens import catalog, figures
from normlens.figures import freeze_sweep, logit_attribution, output, prompt_attribution, scale
from normlens.results import Result
from tests.synthetic_results import FOUR, PROMPT, TOKENS, Model, result

ANALYSES = [analysis.name for analysis in catalog.ALL]
HOSTILE = "<script>alert('$x$')</script> %{x} 🙂"


def texts(value: Any) -> Iterator[str]:
    """Every string that plotly renders as text, however deep."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key not in ("legendgroup", "hovertemplate", "texttemplate"):
                yield from texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts(item)
    elif isinstance(value, str):
        yield value


def spec(figure: go.Figure) -> dict[str, Any]:
    return json.loads(figure.to_json() or "")


def header(figure: go.Figure) -> str:
    """The title and the lines under it, as one line without markup."""
    return re.sub(r"</?span[^>]*>", "", figure.layout.title.text).replace("<br>", " ")


def traces(figure: go.Figure, kind: type) -> list[Any]:
    return [trace for trace in figure.data if isinstance(trace, kind)]


def with_status(found: Result, table: str, model: str, status: str, row: int = 0) -> Result:
    """The result with one row's numbers gone and its status changed."""
    frame = found.tables[table].copy()
    index = frame.index[frame["model"] == model][row]
    floats = [c for c in frame.columns if pd.api.types.is_float_dtype(frame[c])]
    frame.loc[index, floats] = math.nan
    frame.loc[index, "status"] = status
    return dataclasses.replace(found, tables={**found.tables, table: frame})


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("analysis", ANALYSES)
def test_every_declared_figure_is_drawn(analysis: str, count: int) -> None:
    drawn = figures.of(result(analysis, FOUR[:count]))
    assert tuple(drawn) == catalog.get(analysis).figures
    for figure in drawn.values():
        assert figure.layout.height > 140
        assert figure.data
        assert figure.layout.xaxis.type != "category"
        assert header(figure)
        assert "&lt;" not in header(figure)


@pytest.mark.parametrize("analysis", ANALYSES)
def test_equal_results_give_equal_bytes(analysis: str) -> None:
    def first() -> list[str | None]:
        return [f.to_json() for f in figures.of(result(analysis, FOUR[:2])).values()]

    assert first() == first()


@pytest.mark.parametrize("analysis", ANALYSES)
def test_hostile_names_and_tokens_are_escaped(analysis: str) -> None:
    found = result(analysis, [Model(HOSTILE), Model("=1+1", "scale_free", seed=1)])
    if "waterfall" in found.tables:
        tables = {
            name: table.assign(token="<i>$a$", target="</s>")
            for name, table in found.tables.items()
            if name in ("waterfall", "positions")
        }
        found = dataclasses.replace(found, tables={**found.tables, **tables})
    for figure in figures.of(found).values():
        for text in texts(spec(figure)):
            for danger in ("<script", "</s>", "<i>", "$"):
                assert danger not in text, text
        for trace in spec(figure)["data"]:
            assert "alert" not in trace.get("hovertemplate", "")


@pytest.mark.parametrize("analysis", ANALYSES)
def test_rows_without_data_are_words_not_zeros(analysis: str) -> None:
    declared = catalog.get(analysis)
    found = result(analysis, FOUR[:2])
    table = declared.tables[0].name
    figure = figures.of(with_status(found, table, "books-ln", "no_data"))[declared.figures[0]]
    assert "books-ln: 1 row is no data" in header(figure)


@pytest.mark.parametrize("analysis", ANALYSES)
def test_no_model_has_data(analysis: str) -> None:
    found = result(analysis, FOUR[:1])
    empty = {name: table.iloc[:0] for name, table in found.tables.items()}
    found = dataclasses.replace(
        found, tables=empty, not_applicable={"books-ln": "it has no norm at all"}
    )
    for figure in figures.of(found).values():
        assert not figure.data
        assert "it has no norm at all" in header(figure)
        assert "None of these models" in figure.layout.annotations[0].text


@pytest.mark.parametrize("analysis", ANALYSES)
def test_nan_values_do_not_break_a_figure(analysis: str) -> None:
    found = result(analysis, FOUR[:2])
    tables = {}
    for name, table in found.tables.items():
        floats = [c for c in table.columns if pd.api.types.is_float_dtype(table[c])]
        tables[name] = table.assign(**{c: table[c].where(table.index % 3 != 1) for c in floats})
    drawn = figures.of(dataclasses.replace(found, tables=tables))
    assert all("NaN" not in (figure.to_json() or "") for figure in drawn.values())


def test_not_applicable_models_are_named_and_not_drawn() -> None:
    figure = freeze_sweep.single(result("freeze-sweep"))
    assert "Not applicable to books-lnfree" in header(figure)
    assert {bar.name for bar in figure.data} == {"books-ln", "books-control", "books-aux"}


def test_would_be_scales_are_dashed_and_labelled() -> None:
    drawn = {t.name: t for t in scale.by_site(result("scale")).data if t.name}
    assert drawn["books-lnfree (not applied)"].line.dash == "dash"
    assert drawn["books-lnfree (not applied)"].marker.symbol.endswith("-open")
    assert drawn["books-ln"].line.dash == "solid"
    assert "not applied" in header(scale.by_site(result("scale")))
    assert "not applied" not in header(scale.by_site(result("scale", FOUR[:2])))


def test_the_first_token_has_its_own_panel_and_a_ratio() -> None:
    found = result("scale", FOUR[:1])
    panels = [t for t in scale.by_site(found).data if t.mode == "lines+markers"]
    assert [t.yaxis for t in panels] == ["y", "y2"]
    ratio = scale.first_token(found).data[0]
    assert ratio.y == pytest.approx([1.7] * 7)


def test_ribbons_go_around_the_quantiles() -> None:
    found = result("scale", FOUR[:1])
    rest = found.tables["scale"].query("group == 'rest'")
    ribbon = next(t for t in scale.by_site(found).data if t.fill == "toself")
    assert list(ribbon.y) == [*rest["q95"], *rest["q05"][::-1]]


def test_lines_break_where_a_model_has_no_site() -> None:
    found = result("scale", [FOUR[0], Model("shallow", layers=1, seed=1)])
    figure = scale.by_site(found)
    line = next(t for t in figure.data if t.name == "shallow" and t.yaxis == "y")
    assert list(line.x) == [0, 1, 2, 3, 4, 5, 6]
    assert [math.isnan(y) for y in line.y] == [False, False, True, True, True, True, False]
    ribbon = [t for t in figure.data if t.fill == "toself"][1]
    assert list(ribbon.x)[:4] == [0, 1, 1, 0]
    assert math.isnan(ribbon.x[4])


def test_loss_shows_paired_differences() -> None:
    figure = output.loss(result("output"))
    below = [t for t in figure.data if t.yaxis == "y2"]
    assert [t.name for t in below] == ["books-ln", "books-control", "books-aux", "books-lnfree"]
    free = below[-1]
    assert free.x[0] == pytest.approx(0.011)
    assert free.error_x.array[0] < 0.02  # far narrower than either model's own interval, 0.06


def test_calibration_leaves_out_empty_bins() -> None:
    found = result("output", FOUR[:1])
    table = found.tables["calibration"].copy()
    table.loc[3, ["n", "confidence", "accuracy"]] = [0, math.nan, math.nan]
    figure = output.calibration(
        dataclasses.replace(found, tables={**found.tables, "calibration": table})
    )
    line = next(t for t in figure.data if t.name == "books-ln")
    assert len(line.x) == 14


def test_sweep_bars_stand_at_symmetric_log_positions() -> None:
    found = result("freeze-sweep", FOUR[:1])
    single = found.tables["sweep"].query("mode == 'single'").set_index("site")["delta_loss"]
    bar = freeze_sweep.single(found).data[0]
    for row, height in zip(bar.customdata, bar.y, strict=True):
        assert math.sinh(height * math.log(10)) * 2e-3 == pytest.approx(single[row[0]])


def test_cumulative_steps_are_labelled_by_site() -> None:
    axis = freeze_sweep.cumulative(result("freeze-sweep")).layout.xaxis
    assert axis.ticktext[0] == "0.pre_mlp"
    assert axis.ticktext[-1] == "final"


def test_head_maps_hold_each_heads_error_on_one_colour_axis() -> None:
    found = result("logit-attribution")
    figure = logit_attribution.nmae_heads(found)
    maps = [t for t in traces(figure, go.Heatmap) if t.coloraxis]
    assert len(maps) == 4
    components = found.tables["components"].query("model == 'books-ln'").set_index("component")
    assert maps[0].z[2][1] == components.loc["L2.H1", "nmae"]
    assert figure.layout.coloraxis.cmin == 0


def test_a_head_without_value_is_grey() -> None:
    found = with_status(
        result("logit-attribution", FOUR[:1]), "components", "books-ln", "no_data", 3
    )
    grey, coloured = traces(logit_attribution.nmae_heads(found), go.Heatmap)
    lost = found.tables["components"].iloc[3]
    assert math.isnan(coloured.z[lost["layer"]][lost["head"]])
    assert grey.z[lost["layer"]][lost["head"]] == 0
    assert set(c for _, c in grey.colorscale) == {"#9a9a9a"}


def test_bars_show_the_largest_components_of_each_model() -> None:
    found = result("logit-attribution", FOUR[:2])
    bars = traces(logit_attribution.dla_against_effect(found), go.Bar)
    top = found.tables["components"].query("model == 'books-control'")
    top = top.nlargest(logit_attribution.TOP_COMPONENTS, "mean_abs_effect")
    assert [row[0] for row in bars[2].customdata] == list(top["component"])
    assert list(bars[2].x) == list(top["dla"])
    assert list(bars[3].x) == list(top["direct_effect"])


def test_groups_have_intervals() -> None:
    found = result("logit-attribution", FOUR[:1])
    bar = logit_attribution.groups(found).data[0]
    table = found.tables["groups"]
    assert list(bar.error_y.array) == pytest.approx(list(table["nmae_high"] - table["nmae"]))


def test_the_waterfall_adds_up_to_the_models_logit() -> None:
    found = result("prompt-attribution", FOUR[:1])
    figure = prompt_attribution.waterfall(found)
    steps, logit = figure.data
    last = found.tables["positions"].iloc[-1]
    assert steps.measure[-1] == "total"
    assert sum(steps.x[:-1]) == pytest.approx(last["sum"])
    assert steps.x[-1] == pytest.approx(last["sum"])
    assert logit.x[0] == last["logit"]
    names = [str(row[0]) for row in steps.customdata]
    assert names[prompt_attribution.TOP_COMPONENTS].endswith("others")
    assert names[-3:] == ["norm_bias", "unembed_bias", "sum"]


def test_position_map_adds_heads_and_output_bias_of_a_layer() -> None:
    found = result("prompt-attribution", FOUR[:1])
    figure = prompt_attribution.by_position(found)
    coloured = next(t for t in traces(figure, go.Heatmap) if t.coloraxis)
    names = list(figure.layout.yaxis.ticktext)
    assert names[:4] == ["embed", "pos_embed", "L0.attn", "L0.mlp"]
    table = found.tables["waterfall"].query("position == 4 and layer == 1")
    attention = table[table["type"].isin(["head", "attn_bias"])]["dla"].sum()
    assert coloured.z[names.index("L1.attn")][4] == pytest.approx(attention)
    assert figure.layout.coloraxis.cmin == -figure.layout.coloraxis.cmax
    assert figure.layout.xaxis.ticktext[1] == "1:Alice"
    assert len(figure.layout.xaxis.ticktext) == len(PROMPT)


def test_n_stands_in_the_header() -> None:
    assert f"n = {TOKENS:,} tokens" in header(output.quantiles(result("output", FOUR[:1])))
