"""Made-up tables and headline numbers of ``curves``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from normlens.results import Headline

Rows = list[dict[str, Any]]
TOKENS, FIRSTS, WIDTH = 7938, 126, 192
RANGES = {"0–50 %": 0.5, "50–90 %": 1.2, "90–99 %": 2.2, "99–99.9 %": 3.5, "99.9–100 %": 7.0}


def tables(sites: Rows, *, live: bool, draw: np.random.Generator) -> dict[str, Rows]:
    """An S that is sharper where the model is deeper; a line in a scale-free model."""
    fits, tails, curves, slopes = Rows(), Rows(), Rows(), Rows()
    for depth, site in enumerate(sites):
        rms = 0.1 * 1.4**depth
        s = 4 + 4 * float(draw.uniform()) if live else 6000.0
        alpha = 1 / (rms * s)
        for group, tokens in (("first", FIRSTS), ("rest", TOKENS)):
            named = {**site, "group": group}
            n = tokens * WIDTH
            straight = not live
            fits.append(
                {
                    **named,
                    "n": n,
                    "rms": rms,
                    "slope": 1 / rms,
                    "curve_r2": 0.99 if live else 1.0,
                    "line_r2": 0.95 if live else 1.0,
                    "line_slope": 0.9 / rms,
                    "line_intercept": 0.001,
                    "tanh_r2": 0.985 if live else 1.0,
                    "tanh_s": s,
                    "tanh_alpha": alpha,
                    "tanh_straight": straight,
                    "eln_r2": 0.986 if live else 1.0,
                    "eln_s": 1.2 * s,
                    "eln_beta": (1.2 / alpha) ** 2,
                    "eln_straight": straight,
                    "straight_to": 3 * rms,
                    "straight_share": 0.99,
                }
            )
            for name, x in RANGES.items():
                y = s * math.tanh(x / s)
                tails.append(
                    {
                        **named,
                        "range": name,
                        "n": n // 5,
                        "from_x": 0.7 * x * rms,
                        "to_x": 1.2 * x * rms,
                        "rms_xhat": y,
                        "bend": y / x,
                        "tanh_error": 0.05 * x,
                        "eln_error": 0.04 * x,
                        "line_error": 0.02 * x + x - y,
                        "floor": 0.02 * x,
                    }
                )
            for x in np.linspace(-8, 8, 33):
                count = int(n * math.exp(-abs(x)) / 10)
                y = s * math.tanh(x / s)
                row = {"n": count, "x": x * rms, "xhat": y, "sd": 0.05 * abs(x)}
                curves.append({**named, **row})
            spread = 0.12 if live else 0.0
            slopes.append(
                {
                    **named,
                    "n": tokens,
                    "mean": 1 / rms,
                    "spread": spread,
                    "spread_low": 0.95 * spread,
                    "spread_high": 1.05 * spread,
                    **{"q05": 0.8 / rms, "q50": 1 / rms, "q95": 1.2 / rms},
                }
            )
    return {"fits": fits, "tails": tails, "curves": curves, "slopes": slopes}


def headline(tables: Mapping[str, Rows]) -> tuple[Headline, ...]:
    """The median R² of two fits, and the spread of slopes with its interval."""
    rest = [row for row in tables["fits"] if row["group"] == "rest"]
    spread = tables["slopes"][-1]["spread"]
    elements = rest[0]["n"]
    return (
        Headline("tanh_r2", float(np.median([r["tanh_r2"] for r in rest])), "1", "tanh", elements),
        Headline("line_r2", float(np.median([r["line_r2"] for r in rest])), "1", "line", elements),
        Headline("slope_spread", spread, "1", "sd / mean", TOKENS, spread - 0.01, spread + 0.01),
    )
