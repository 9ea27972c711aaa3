"""Identity colours are the same in every figure; hostile strings stay text."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from normlens.figures import theme
from normlens.figures.limits import SymmetricLog, robust_limits
from normlens.figures.sites import site_axis
from normlens.figures.tokens import escape, shorten, token_ticks, visible, wrap


def kinds(**of_model: str) -> dict[str, dict[str, str]]:
    return {model: {"kind": kind} for model, kind in of_model.items()}


class TestIdentities:
    def test_first_live_is_blue_and_first_scale_free_vermilion_in_any_order(self) -> None:
        known = kinds(free="scale_free", ln="live", control="live")
        for order in (["ln", "control", "free"], ["free", "control", "ln"]):
            looks = theme.identities(order, known)
            first_live = next(m for m in order if m != "free")
            assert looks[first_live].colour == "#0072B2"
            assert looks["free"].colour == "#D55E00"

    def test_without_a_kind_position_decides(self) -> None:
        looks = theme.identities(["a", "b"], {})
        assert [looks[m].colour for m in "ab"] == ["#0072B2", "#D55E00"]

    @pytest.mark.parametrize("kind", ["live", "scale_free", ""])
    def test_six_models_look_different(self, kind: str) -> None:
        names = list("abcdef")
        looks = theme.identities(names, {m: {"kind": kind} for m in names})
        assert len({looks[m].colour for m in names}) == 6
        assert len({looks[m].symbol for m in names}) == 6

    def test_the_dash_of_scales_that_are_not_applied_is_nobodys(self) -> None:
        looks = theme.identities(list("abcdef"), {})
        assert theme.NOT_APPLIED_DASH not in {look.dash for look in looks.values()}

    def test_faded(self) -> None:
        look = theme.identities(["a"], {})["a"]
        assert look.faded(0.5) == "rgba(0,114,178,0.5)"


class TestTokens:
    @pytest.mark.parametrize(
        ("raw", "shown"),
        [
            ("<b>&</b>", "&lt;b&gt;&amp;&lt;/b&gt;"),
            ("$x$", "&#36;x&#36;"),
            ("a\x0cb\x7f", "a\\x0cb\\x7f"),
            (b"\xff".decode("utf-8", "surrogateescape"), "\\xff"),
            ("🙂 é", "🙂 é"),
        ],
    )
    def test_escape(self, raw: str, shown: str) -> None:
        assert escape(raw) == shown

    def test_visible_marks_spaces_and_newlines(self) -> None:
        assert visible(" the\n</s>") == "·the⏎&lt;/s&gt;"

    def test_repeated_tokens_keep_their_own_places(self) -> None:
        ticks = token_ticks(["the", " the", "the"])
        assert ticks.values == [0, 1, 2]
        assert ticks.labels == ["0:the", "1:·the", "2:the"]

    def test_long_prompts_label_every_kth_position(self) -> None:
        ticks = token_ticks(["x"] * 100, most=40)
        assert ticks.values == list(range(0, 100, 3))

    def test_shorten_keeps_both_ends(self) -> None:
        assert shorten("a" * 30 + "tail", 12) == "aaaaa…aatail"
        assert shorten("short", 12) == "short"

    def test_wrap_escapes_after_breaking(self) -> None:
        assert wrap("a <b> c", 3) == ["a", "&lt;b&gt;", "c"]


class TestLimits:
    def test_an_outlier_sets_no_limit_and_is_counted(self) -> None:
        values = np.append(np.ones(999), 1e6)
        limits = robust_limits(values, signed=False)
        assert limits.high < 10
        assert limits.clipped == 1
        assert "1 cell lies beyond" in limits.note

    def test_signed_limits_are_symmetric(self) -> None:
        limits = robust_limits([-3.0, 1.0, math.nan], signed=True)
        assert limits.low == -limits.high
        assert limits.high == pytest.approx(3, rel=0.02)

    def test_nothing_finite(self) -> None:
        assert robust_limits([math.nan], signed=False).note == ""

    def test_all_zero_has_an_extent(self) -> None:
        limits = robust_limits(np.zeros(5), signed=False)
        assert (limits.low, limits.high, limits.clipped) == (0, 1, 0)

    def test_symmetric_log_is_odd_monotone_and_a_decade_is_one_unit(self) -> None:
        axis = SymmetricLog(1e-3)
        values = np.array([-1.0, -1e-2, 0.0, 1e-4, 1.0, 10.0])
        positions = axis.position(values)
        assert (np.diff(positions) > 0).all()
        assert axis.position(-values) == pytest.approx(-positions)
        assert positions[-1] - positions[-2] == pytest.approx(1, abs=1e-5)

    def test_symmetric_log_ticks_cover_the_values(self) -> None:
        ticks = SymmetricLog(1e-3).axis([-0.002, 0.05])["ticktext"]
        positive = ["0.001", "0.003", "0.01", "0.03", "0.1", "0.3"]
        assert ticks == ["−0.03", "−0.01", "−0.003", "−0.001", "0", *positive]


def sites(labels: list[str], layers: list[int | None]) -> pd.DataFrame:
    return pd.DataFrame(
        {"site": labels, "layer": pd.array(layers, "Int64"), "order": range(len(labels))}
    )


class TestSiteAxis:
    def test_models_of_other_depth_share_the_last_site(self) -> None:
        shallow = sites(["0.pre_attn", "final"], [0, None])
        deep = sites(["0.pre_attn", "1.pre_attn", "final"], [0, 1, None])
        axis = site_axis([shallow, deep])
        assert list(axis.positions) == ["0.pre_attn", "1.pre_attn", "final"]
        assert "differ in depth" in axis.note
        assert site_axis([deep, deep]).note == ""

    def test_a_norm_of_the_embeddings_comes_first(self) -> None:
        frame = sites(["embed", "0.pre_attn", "final"], [None, 0, None])
        assert list(site_axis([frame]).positions) == ["embed", "0.pre_attn", "final"]
