"""Declaration of ``attention-entropy``."""

from __future__ import annotations

from pydantic import Field
from pydantic.dataclasses import dataclass

from normlens.catalog.columns import INTERVAL, N, measure
from normlens.catalog.declaration import Analysis, Citation, Need
from normlens.results import Column, TableSchema


@dataclass(frozen=True)
class AttentionEntropyParameters:
    """Parameters of ``attention-entropy``."""

    sink_positions: int = Field(
        default=64,
        ge=2,
        le=65536,
        description="tokens of each sequence that the sink rate looks at; shorter sequences are "
        "left out of it",
    )
    sink_threshold: float = Field(
        default=0.3,
        gt=0.0,
        lt=1.0,
        description="mean attention on the first token above which a head is a sink",
    )


_LAYER = Column("layer", "int64", "", "block index from 0")
_HEAD = Column("head", "int64", "", "query head from 0")
_GROUP = Column(
    "group",
    "str",
    "",
    "rest: every query but the first of its sequence; first (encoders only): those",
)

ATTENTION_ENTROPY = Analysis(
    name="attention-entropy",
    title="Entropy of attention",
    question="How spread out is each head's attention, and how much of it is a sink?",
    explanation=(
        "For query i with n visible keys and attention a, `H = -sum a_j ln a_j` in nats "
        "(`0 ln 0 = 0`). The main number is `H / ln n`, from 0 (one key takes all) to 1 (all keys "
        "alike), averaged over queries with at least two visible keys; the first query of each "
        "sequence is apart. It compares across models, layers and lengths. The published bins "
        "are quarters of the largest head entropy *of the same model*: they are given as "
        "'reproduction', from the mean of H over all queries, whose ceiling for a causal head is "
        "`ln(T!)/T`, not `ln T` (4.560 nats at T = 256). The ceiling column gives the mean of "
        "`ln n` over the queries that are there. The sink split "
        "`H = Hb(a_0) + (1 - a_0) H(others)`, with a_0 the attention on the first token of the "
        "sequence (0 where a sliding window hides it), tells losing a sink from spreading out. "
        "The sink rate is the share of heads and sequences whose mean attention on the first "
        "token over the first T queries, `sum_i A_i1 / T`, is above the threshold; uniform "
        "causal attention has 0.074 at T = 64. Untrained heads lie near the ceiling: put "
        "the model at step 0 beside the trained one."
    ),
    parameters=AttentionEntropyParameters,
    topic="attention",
    runs_on="corpus",
    style="streaming",
    needs=frozenset({Need.ATTENTION}),
    tables=(
        TableSchema(
            "heads",
            "One row per head and query group.",
            (
                _LAYER,
                _HEAD,
                _GROUP,
                N,
                measure("normalised", "1", "mean of H / ln n"),
                measure("normalised_low", "1", INTERVAL),
                measure("normalised_high", "1", INTERVAL),
                Column("quarter", "str", "", "quarter of the ceiling that normalised lies in"),
                measure("entropy", "nats", "mean entropy"),
                measure("ceiling", "nats", "mean ln n over the same queries"),
                measure("entropy_all", "nats", "mean entropy over all queries, as published"),
                measure("ceiling_all", "nats", "mean ln n over all queries: ln(T!)/T if causal"),
                Column(
                    "reproduction_quarter",
                    "str",
                    "",
                    "quarter of the model's largest entropy_all that entropy_all lies in",
                ),
                measure("first_mass", "1", "mean attention on the sequence's first token"),
                measure("sink_entropy", "nats", "mean Hb(a_0): first token or not"),
                measure("rest_entropy", "nats", "mean (1 - a_0) H(others); adds up to entropy"),
                Column("nan", "int64", "tokens", "queries left out because their attention is NaN"),
            ),
        ),
        TableSchema(
            "bins",
            "Share of heads in each quarter.",
            (
                Column(
                    "mode", "str", "", "normalised: of ln n; reproduction: of the model's largest"
                ),
                Column("quarter", "str", "", "quarter of that, the lower end included"),
                Column("n", "int64", "heads", "number of heads of the model"),
                measure("share", "1", "share of heads"),
                measure("share_low", "1", INTERVAL),
                measure("share_high", "1", INTERVAL),
            ),
        ),
        TableSchema(
            "sinks",
            "Attention on the first token over the first positions, one row per head.",
            (
                _LAYER,
                _HEAD,
                Column("n", "int64", "sequences", "sequences that are long enough"),
                Column("left_out", "int64", "sequences", "sequences that are shorter"),
                measure("rate", "1", "share of sequences above the threshold"),
                measure("rate_low", "1", INTERVAL),
                measure("rate_high", "1", INTERVAL),
                measure("mass", "1", "mean over sequences of the attention on the first token"),
            ),
        ),
        TableSchema(
            "logits",
            "Attention logits over visible pairs, one row per head and query group.",
            (
                _LAYER,
                _HEAD,
                _GROUP,
                Column("n", "int64", "pairs", "pairs of a query and a key it sees"),
                measure("mean", "1", "mean logit, scale and cap applied"),
                measure("sd", "1", "standard deviation over pairs"),
                measure("maximum", "1", "largest logit"),
            ),
        ),
        TableSchema(
            "vectors",
            "Queries and keys after positions are applied, one row per head and query group.",
            (
                _LAYER,
                _HEAD,
                _GROUP,
                N,
                measure("query_norm", "1", "mean L2 norm of the group's queries"),
                measure("key_norm", "1", "mean L2 norm of the keys at the same tokens"),
                measure("cosine", "1", "mean cosine of query and key over visible pairs"),
            ),
        ),
    ),
    figures=(
        "attention_entropy:entropy_map",
        "attention_entropy:quarters",
        "attention_entropy:by_depth",
        "attention_entropy:sinks",
    ),
    kernel="attention_entropy:KERNEL",
    citations=(
        Citation(
            "Jha & Reagen 2024, ReLU's Revival: On the Entropic Overload in "
            "Normalization-Free Large Language Models",
            "2410.09637",
        ),
        Citation("Gu et al. 2024, When Attention Sink Emerges in Language Models", "2410.10781"),
        Citation(
            "Zhai et al. 2023, Stabilizing Transformer Training by Preventing Attention "
            "Entropy Collapse",
            "2303.06296",
            "sec. 3",
        ),
    ),
)
