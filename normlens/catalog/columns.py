"""Columns that several tables share."""

from __future__ import annotations

from normlens.results import Column

SITE = Column("site", "str", "", "site label, e.g. 3.pre_attn")
LAYER = Column("layer", "Int64", "", "block index from 0; empty outside blocks")
ROLE = Column("role", "str", "", "where the norm sits")
ORDER = Column("order", "int64", "", "rank in order of execution")
KIND = Column("kind", "str", "", "what the norm computes")
COMPONENT = Column("component", "str", "", "L3.H5, L3.mlp, L3.attn_bias, embed, pos_embed")
HEAD = Column("head", "Int64", "", "head index from 0; empty where there is none")
GROUP = Column("group", "str", "", "first: first token of each sequence; rest: all others")
N = Column("n", "int64", "tokens", "number of tokens behind the row")


SITE_COLUMNS = (SITE, LAYER, ROLE, ORDER, KIND)
"""What tells the norms of a model apart, in every table with rows for them."""

INTERVAL = "95 % bootstrap interval, documents resampled"


def measure(name: str, unit: str, doc: str) -> Column:
    """A float column."""
    return Column(name, "float64", unit, doc)
