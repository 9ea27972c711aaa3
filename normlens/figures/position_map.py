"""Contributions by layer and position of one prompt, as a table and as traces."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from normlens.figures import theme
from normlens.figures.declared import meaning
from normlens.figures.tokens import escape, visible

_BLOCK = re.compile(r"L(\d+)\.")


def layer_map(frame: pd.DataFrame) -> pd.DataFrame:
    """Sum of DLA with one row per embedding, layer's attention, layer's MLP and bias term."""
    block = frame["layer"].notna() & frame["type"].isin(("head", "attn_bias"))
    layer = frame["layer"].astype("Int64").astype(str)
    name = frame["component"].where(~block, "L" + layer + ".attn")
    kind = frame["type"].map({"embedding": 0, "norm_bias": 2, "unembed_bias": 3}).fillna(1)
    keyed = frame.assign(
        name=name,
        kind=kind,
        depth=frame["layer"].fillna(-1).astype(int),
        mlp=frame["type"] == "mlp",
    )
    order = keyed[["kind", "depth", "mlp", "name"]].drop_duplicates()
    order = order.sort_values(["kind", "depth", "mlp"], kind="stable")["name"]
    table = keyed.pivot_table(
        index="name", columns="position", values="dla", aggfunc=lambda v: v.sum(min_count=len(v))
    )
    return table.reindex(order)


def position_map(
    table: pd.DataFrame, positions: pd.DataFrame, model: str
) -> tuple[go.Heatmap, go.Heatmap]:
    """Grey cells for what has no value, and the values of :func:`layer_map` above them."""
    values = table.to_numpy(float)
    columns = [int(position) for position in table.columns]
    by_position = positions.set_index("position")
    tokens = [visible(str(by_position["token"].get(p, ""))) for p in columns]
    targets = [visible(str(by_position["target"].get(p, ""))) for p in columns]
    names = [escape(str(name)) for name in table.index]
    blocks = [int(found[1]) if (found := _BLOCK.match(name)) else None for name in names]
    details = np.array(
        [
            [[name, token, target, block] for token, target in zip(tokens, targets, strict=True)]
            for name, block in zip(names, blocks, strict=True)
        ],
        dtype=object,
    )
    y = list(range(len(names)))
    grey = go.Heatmap(
        x=columns,
        y=y,
        z=np.where(np.isfinite(values), np.nan, 0.0),
        showscale=False,
        colorscale=[[0, theme.NOT_APPLICABLE], [1, theme.NOT_APPLICABLE]],
        xgap=1,
        ygap=1,
        hovertemplate="no value<extra></extra>",
    )
    coloured = go.Heatmap(
        x=columns,
        y=y,
        z=values,
        coloraxis="coloraxis",
        customdata=details,
        meta=meaning(x="position", columns=("", "", "", "layer"), model=model),
        xgap=1,
        ygap=1,
        hoverongaps=False,
        hovertemplate=(
            "<b>%{customdata[0]}</b> at %{x}: “%{customdata[1]}” → “%{customdata[2]}”"
            "<br>%{z:+.4g} logits<extra></extra>"
        ),
    )
    return grey, coloured
