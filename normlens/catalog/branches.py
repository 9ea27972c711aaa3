"""Declaration of ``branches``."""

from __future__ import annotations

from pydantic.dataclasses import dataclass

from normlens.catalog.columns import N, measure
from normlens.catalog.declaration import Analysis, Citation, Need
from normlens.catalog.residual import GROUP, INTERVAL
from normlens.results import Column, TableSchema


@dataclass(frozen=True)
class BranchesParameters:
    """``branches`` has no parameters."""


BRANCHES = Analysis(
    name="branches",
    title="What attention and MLP add",
    question="How large is what each block adds to the residual stream, and where does it point?",
    explanation=(
        "What attention and MLP of a block add to its input `x`, after any norm that follows them "
        "and times the model's branch scale where it has one: the norm `|b|`, the ratio "
        "`|b| / |x|`, which no convention of scale can change, and the cosine of `b` and `x`: "
        "negative where a branch erases what is there. `x` is the block's input for both branches, "
        "also where the MLP reads what attention has added. A ratio that falls with depth "
        "is the growing residual of pre-norm models drowning its later blocks."
    ),
    parameters=BranchesParameters,
    topic="depth",
    runs_on="corpus",
    style="streaming",
    needs=frozenset({Need.BRANCH_STEPS}),
    tables=(
        TableSchema(
            "branches",
            "One row per block, branch and token group.",
            (
                Column("layer", "int64", "", "block index from 0"),
                Column("branch", "str", "", "attention or mlp"),
                GROUP,
                N,
                measure("norm", "residual units", "mean L2 norm of what the branch adds"),
                measure("ratio", "1", "mean of that norm over the norm of the block's input"),
                measure("ratio_low", "1", INTERVAL),
                measure("ratio_high", "1", INTERVAL),
                measure("cosine", "1", "mean cosine with the block's input"),
                measure("cosine_centred", "1", "without the mean over d_model"),
            ),
        ),
    ),
    figures=("residual:branches", "residual:branch_cosines"),
    kernel="residual_branches:KERNEL",
    citations=(
        Citation(
            "Sun et al. 2025, The Curse of Depth in Large Language Models",
            "2502.05795",
            "sections 2-3",
        ),
    ),
)
