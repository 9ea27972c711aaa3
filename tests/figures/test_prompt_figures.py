"""Figures of prompt-attention, prompt-scale and prompt-patching: what they show and say."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

from normlens import figures
from normlens.figures import prompt_attention, prompt_patching, prompt_scale
from normlens.figures.prompt_maps import token_axis
from normlens.figures.prompt_pattern import default_head
from normlens.figures.selecting import clickable, picked
from normlens.results import Result
from tests.synthetic_prompts import TOKENS
from tests.synthetic_results import FOUR, Model, result

PAIR = (FOUR[0], FOUR[3])
HOSTILE = "<i>$a$</i>"
NAMES = ("prompt-attention", "prompt-scale", "prompt-patching")


def maps(figure: go.Figure) -> list[Any]:
    """The coloured maps; grey cells below them declare nothing."""
    return [trace for trace in figure.data if isinstance(trace, go.Heatmap) and trace.meta]


def values(trace: Any) -> np.ndarray:
    return np.asarray(trace.z, dtype=float)


def title(figure: go.Figure) -> str:
    return figure.layout.title.text.replace("<br>", " ")


def panels(figure: go.Figure) -> list[str]:
    return [annotation.text for annotation in figure.layout.annotations]


def with_weight(found: Result, model: str, at: tuple[int, int, int, int], weight: float) -> Result:
    frame = found.tables["patterns"].copy()
    here = frame["model"] == model
    for name, index in zip(("layer", "head", "query", "key"), at, strict=True):
        here &= frame[name] == index
    assert here.sum() == 1
    frame.loc[here, "weight"] = weight
    return dataclasses.replace(found, tables={**found.tables, "patterns": frame})


def test_the_pattern_of_a_head_is_its_weights_with_nothing_after_the_query() -> None:
    found = with_weight(result("prompt-attention", PAIR), "books-ln", (1, 2, 5, 3), 0.875)
    figure = prompt_attention.pattern(found, 1, 2)
    first, second, change = maps(figure)
    assert values(first)[5, 3] == 0.875
    assert np.isnan(values(first)[np.triu_indices(len(TOKENS), 1)]).all()
    assert np.isfinite(values(first)[np.tril_indices(len(TOKENS))]).all()
    assert values(change) == pytest.approx(values(second) - values(first), nan_ok=True)
    assert "L1.H2" in title(figure)
    assert first.meta["select_all"] == {"layer": 1, "head": 2}


def test_a_figure_of_one_part_draws_the_chosen_one() -> None:
    found = result("prompt-attention", PAIR)
    assert figures.followed("prompt_attention:pattern") == ("layer", "head")
    assert figures.followed("prompt_attention:heads") == ()
    chosen = figures.draw(found, "prompt_attention:pattern", layer=1, head=2, position=3)
    assert "L1.H2" in title(chosen)
    assert figures.draw(found, "prompt_attention:heads", layer=1) is not None


def test_the_head_that_differs_most_is_shown() -> None:
    found = result("prompt-attention", PAIR)
    for model, weight in (("books-ln", 50.0), ("books-lnfree", -50.0)):
        found = with_weight(found, model, (2, 1, 4, 0), weight)
    choice = default_head(found, ["books-ln", "books-lnfree"])
    assert set(choice.heads.values()) == {(2, 1)}
    assert "differs most" in title(prompt_attention.pattern(found))


def test_one_model_shows_its_largest_induction_score() -> None:
    found = result("prompt-attention", FOUR[:1])
    frame = found.tables["heads"].copy()
    frame.loc[(frame["layer"] == 1) & (frame["head"] == 3), "induction"] = 0.99
    found = dataclasses.replace(found, tables={**found.tables, "heads": frame})
    figure = prompt_attention.pattern(found)
    assert "L1.H3" in title(figure) and "induction" in title(figure)
    frame = frame.assign(induction=math.nan)
    found = dataclasses.replace(found, tables={**found.tables, "heads": frame})
    assert "largest previous token score" in title(prompt_attention.pattern(found))


def test_strangers_are_not_subtracted_and_a_missing_head_is_said() -> None:
    strangers = [FOUR[0], Model("other", seed=5, layers=2)]
    found = result("prompt-attention", strangers)
    assert len(maps(prompt_attention.heads(found))) == 2 * len(prompt_attention.SCORES)
    figure = prompt_attention.pattern(found, 2, 0)
    assert len(maps(figure)) == 1
    assert "other: there is no L2.H0" in title(figure)


def test_a_window_of_a_long_prompt_is_said_and_keeps_its_positions() -> None:
    found = result("prompt-attention", FOUR[:1])
    frame = found.tables["patterns"]
    late = frame[(frame["query"] >= 3) & (frame["key"] >= 3)]
    found = dataclasses.replace(found, tables={**found.tables, "patterns": late})
    figure = prompt_attention.pattern(found, 0, 0)
    assert "the last 4 of 7 tokens" in title(figure)
    assert list(maps(figure)[0].x) == [3, 4, 5, 6]
    assert figure.layout.xaxis.ticktext == ("3:·and", "4:⏎", "5:·the", "6:·key")


def test_heads_without_a_score_are_grey_and_said() -> None:
    found = result("prompt-attention", FOUR[:1])
    frame = found.tables["heads"].assign(induction=math.nan)
    repeats = title(prompt_attention.heads(found))
    none = prompt_attention.heads(
        dataclasses.replace(found, tables={**found.tables, "heads": frame})
    )
    assert "repeats no token" not in repeats and "repeats no token" in title(none)
    row = list(prompt_attention.SCORES).index("induction")
    assert np.isnan(values(maps(none)[row])).all()


def test_a_scale_that_is_not_applied_is_said() -> None:
    figure = prompt_scale.by_site(result("prompt-scale", PAIR))
    assert "books-lnfree: would-be scale, not applied" in panels(figure)
    assert "books-ln" in panels(figure)
    mixed = result("prompt-scale", FOUR[:1])
    frame = mixed.tables["scale"]
    frame = frame.assign(applied=frame["site"] != "1.pre_mlp")
    mixed = dataclasses.replace(mixed, tables={**mixed.tables, "scale": frame})
    labels = prompt_scale.by_site(mixed).layout.yaxis.ticktext
    assert "1.pre_mlp (not applied)" in labels and "0.pre_attn" in labels


def test_colours_of_scales_leave_the_first_token_out() -> None:
    found = result("prompt-scale", FOUR[:1])
    figure = prompt_scale.by_site(found)
    first, others = maps(figure)
    assert values(first).shape[1] == 1 and list(others.x) == list(range(1, len(TOKENS)))
    assert 10**figure.layout.coloraxis.cmax < 10 ** values(first).max()
    table = found.tables["scale"].pivot(index="order", columns="position", values="scale")
    assert 10 ** values(others) == pytest.approx(table.loc[:, 1:].to_numpy())
    relative = maps(prompt_scale.relative(found))[1]
    median = table.loc[:, 1:].median(axis=1)
    expected = table.loc[:, 1:].div(median, axis=0).to_numpy()
    assert 10 ** values(relative) == pytest.approx(expected)


def test_recovery_is_drawn_where_it_was_measured() -> None:
    found = result("prompt-patching", PAIR)
    drawn = maps(prompt_patching.recovery(found))
    assert len(drawn) == 9
    frame = found.tables["recovery"]
    rows = frame[(frame["model"] == "books-ln") & (frame["what"] == "mlp")]
    table = rows.pivot(index="point", columns="position", values="recovery").to_numpy()
    assert values(drawn[2]) == pytest.approx(table)
    assert values(drawn[8]) == pytest.approx(values(drawn[5]) - values(drawn[2]))
    best = prompt_patching.by_layer(found).data[2]
    assert list(best.y) == pytest.approx(table.max(1))


@pytest.mark.parametrize("analysis", NAMES)
def test_clicks_select_what_the_cell_stands_for(analysis: str) -> None:
    found = result(analysis, PAIR)
    seen: set[str] = set()
    for figure in figures.of(found).values():
        for trace in clickable(figure).data:
            if isinstance(trace, go.Scatter) and trace.customdata is not None:
                chosen = [picked({"customdata": list(row)}) for row in trace.customdata]
                seen |= {
                    k for c in chosen for k, v in dataclasses.asdict(c).items() if v is not None
                }
    expected = {
        "prompt-attention": {"layer", "head", "position"},
        "prompt-scale": {"layer", "site", "position"},
        "prompt-patching": {"layer", "position"},
    }[analysis]
    assert expected <= seen


@pytest.mark.parametrize("analysis", NAMES)
def test_hostile_tokens_are_escaped(analysis: str) -> None:
    found = result(analysis, PAIR)
    tables = {
        name: frame.assign(
            **{
                column: HOSTILE
                for column in ("token", "corrupted_token", "answer", "wrong")
                if column in frame
            }
        )
        for name, frame in found.tables.items()
    }
    for figure in figures.of(dataclasses.replace(found, tables=tables)).values():
        text = figure.to_json() or ""
        assert HOSTILE not in text and "<i>" not in text and "\\u003ci\\u003e" not in text


def test_ticks_of_many_tokens_are_thinned_and_start_where_they_should() -> None:
    axis = token_axis(["x"] * 100, 50, most=10)
    assert axis["tickvals"] == list(range(50, 150, 10))
    assert axis["ticktext"][0] == "50:x"
    assert axis["range"] == [49.5, 149.5]
