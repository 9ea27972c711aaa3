"""Declaration of ``prompt-attention``."""

from __future__ import annotations

from pydantic import Field
from pydantic.dataclasses import dataclass

from normlens.catalog.columns import measure
from normlens.catalog.declaration import Analysis, Citation, Need
from normlens.results import Column, TableSchema


@dataclass(frozen=True)
class PromptAttentionParameters:
    """Parameters of ``prompt-attention``."""

    prompt: str = Field(
        default="Alice took the key and opened the door. Then Alice took the key and opened the",
        min_length=1,
        max_length=100_000,
        description="text to analyse; induction and duplicate scores need repeated words",
    )
    threshold: float = Field(
        default=0.4,
        gt=0.0,
        le=1.0,
        description="scores from here on name a head",
    )
    pattern_tokens: int = Field(
        default=256,
        ge=2,
        le=1024,
        description="tokens whose patterns are kept; of a longer prompt the last ones",
    )


_LAYER = Column("layer", "int32", "", "block index from 0")
_HEAD = Column("head", "int32", "", "query head from 0")

PROMPT_ATTENTION = Analysis(
    name="prompt-attention",
    title="Attention of one prompt",
    question="Where does each head look in this prompt, and what kind of head is it?",
    explanation=(
        "The pattern `a_ij` is the attention of query i on key j. `entropy` is "
        "`-sum_j a_ij ln a_ij` in nats, its ceiling `ln n` for n visible keys. A score is a mean "
        "over queries of the attention on certain keys: on the token before (`previous_token`, "
        "queries from the third on, so that the first token is never meant), on earlier "
        "occurrences of the same token (`duplicate_token`), on tokens that follow an earlier "
        "occurrence of it (`induction`, the prefix-matching score), on itself (`current_token`), "
        "on the first token (`first_token`, a sink). The first query is left out, and duplicates "
        "at the first position do not count. Duplicates and induction need repeated tokens: only "
        "queries that have such keys are averaged over, and without any the score is empty. A "
        "head is named after the largest of its scores that reaches the threshold, after the "
        "first token only where no other does (an induction head rests there while nothing "
        "repeats). The threshold is a convention, and scores of one prompt say what a head does "
        "here, not everywhere. "
        "Entropies and scores are of all tokens. Patterns are kept whole for up to "
        "`pattern_tokens` tokens and 2,097,152 pairs of all heads together; of a longer prompt "
        "its last tokens are kept, and `outside` is the attention on keys before them."
    ),
    parameters=PromptAttentionParameters,
    runs_on="prompt",
    style="streaming",
    needs=frozenset({Need.ATTENTION}),
    tables=(
        TableSchema(
            "heads",
            "One row per head.",
            (
                _LAYER,
                _HEAD,
                Column("category", "str", "", "name of the score it is called after, or other"),
                Column("n", "int64", "tokens", "queries after the first"),
                Column("n_duplicate", "int64", "tokens", "those with an earlier occurrence"),
                Column("n_induction", "int64", "tokens", "those with a key that follows one"),
                measure("previous_token", "1", "mean attention on the token before"),
                measure("duplicate_token", "1", "mean attention on the same token before"),
                measure("induction", "1", "mean attention on what followed the same token before"),
                measure("current_token", "1", "mean attention on the query's own token"),
                measure("first_token", "1", "mean attention on the first token"),
                measure("entropy", "nats", "mean entropy of these queries"),
                measure("normalised", "1", "mean of entropy / ceiling over the same"),
            ),
        ),
        TableSchema(
            "queries",
            "One row per head and query.",
            (
                _LAYER,
                _HEAD,
                Column("position", "int32", "", "position of the query"),
                Column("token", "str", "", "token there"),
                Column("keys", "int32", "tokens", "visible keys"),
                measure("entropy", "nats", "entropy of the attention"),
                measure("ceiling", "nats", "ln of the visible keys"),
                measure("normalised", "1", "entropy / ceiling; empty with one visible key"),
                measure("first_mass", "1", "attention on the first token"),
                measure("outside", "1", "attention on keys that patterns leaves out"),
            ),
        ),
        TableSchema(
            "patterns",
            "One row per head, query and key up to it.",
            (
                _LAYER,
                _HEAD,
                Column("query", "int32", "", "position of the query"),
                Column("key", "int32", "", "position of the key"),
                Column("weight", "float32", "1", "attention of the query on the key"),
            ),
        ),
    ),
    figures=(
        "prompt_attention:heads",
        "prompt_attention:pattern",
        "prompt_attention:entropy_by_position",
    ),
    kernel="prompt_attention:KERNEL",
    topic="attention",
    citations=(
        Citation(
            "Olsson et al. 2022, In-context Learning and Induction Heads",
            "2209.11895",
            "prefix matching score",
        ),
        Citation(
            "Wang et al. 2022, Interpretability in the Wild: a Circuit for Indirect Object "
            "Identification in GPT-2 small",
            "2211.00593",
            "duplicate token heads",
        ),
        Citation("Gu et al. 2024, When Attention Sink Emerges in Language Models", "2410.10781"),
    ),
)
