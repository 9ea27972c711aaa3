"""Declaration of ``prompt-patching``."""

from __future__ import annotations

from pydantic import Field
from pydantic.dataclasses import dataclass

from normlens.catalog.columns import LAYER, measure
from normlens.catalog.declaration import Analysis, Citation, Extent
from normlens.results import Column, TableSchema


@dataclass(frozen=True)
class PromptPatchingParameters:
    """Parameters of ``prompt-patching``."""

    clean: str = Field(
        default="The woman said that",
        min_length=1,
        max_length=100_000,
        description="prompt after which the answer follows",
    )
    corrupted: str = Field(
        default="The man said that",
        min_length=1,
        max_length=100_000,
        description="the same prompt asking for the wrong answer, of as many tokens",
    )
    answer: str = Field(
        default=" she",
        min_length=1,
        max_length=1000,
        description="single token that follows the clean prompt, with its leading space",
    )
    wrong: str = Field(
        default=" he",
        min_length=1,
        max_length=1000,
        description="single token that follows the corrupted prompt, with its leading space",
    )
    smallest_gap: float = Field(
        default=0.1,
        gt=0.0,
        le=1000.0,
        description="logits by which the two prompts must differ for a recovery to be given",
    )


def _forwards(parameters: PromptPatchingParameters, extent: Extent) -> float:
    """Residual, attention and MLP of every block at every token, a word for a token."""
    return 3.0 * max(1, extent.live_sites // 2) * (len(parameters.clean.split()) + 1)


PROMPT_PATCHING = Analysis(
    name="prompt-patching",
    title="Activation patching of two prompts",
    question="Where does the model keep what tells these two prompts apart?",
    explanation=(
        "The corrupted prompt is run again with one activation replaced by that of the clean "
        "prompt at one position: the residual stream before a block or after the last, or what "
        "attention or the MLP of a block adds. With the logit difference "
        "`d = logit(answer) - logit(wrong)` at the last position, "
        "`recovery = (d - d_corrupted) / (d_clean - d_corrupted)`: 0 where the patch changes "
        "nothing, 1 where it restores the clean answer; it may lie outside. It is a causal effect, "
        "with every norm live as the model has it. Positions before the first that differs hold "
        "the same activations in both runs and are 0 without a pass. Where the two prompts differ "
        "by less than `smallest_gap` logits the recovery is empty and its row not applicable. "
        "Checks: patching the residual stream at every position, at any depth, gives the clean "
        "difference (recovery 1), and patching nothing the corrupted one (recovery 0)."
    ),
    parameters=PromptPatchingParameters,
    runs_on="prompt",
    style="procedure",
    needs=frozenset(),
    tables=(
        TableSchema(
            "recovery",
            "One row per activation and position.",
            (
                Column("what", "str", "", "residual, attention or mlp"),
                Column("point", "int32", "", "block; of residual: before it, or after the last"),
                LAYER,
                Column("position", "int32", "", "position that is patched"),
                Column("token", "str", "", "clean token there"),
                Column("corrupted_token", "str", "", "corrupted token there"),
                measure("difference", "logits", "logit of the answer minus that of the wrong one"),
                measure("recovery", "1", "share of the gap between the prompts that is restored"),
            ),
        ),
        TableSchema(
            "runs",
            "The two prompts as they are.",
            (
                Column("run", "str", "", "clean or corrupted"),
                Column("answer", "str", "", "the answer's token"),
                Column("wrong", "str", "", "the wrong answer's token"),
                measure("difference", "logits", "logit of the answer minus that of the wrong one"),
                measure("answer_probability", "1", "the model's probability of the answer"),
                measure("wrong_probability", "1", "the model's probability of the wrong answer"),
            ),
        ),
    ),
    figures=("prompt_patching:recovery", "prompt_patching:by_layer"),
    kernel="prompt_patching:KERNEL",
    prompt_parameter="clean",
    forwards=_forwards,
    topic="attribution",
    citations=(
        Citation(
            "Wang et al. 2022, Interpretability in the Wild: a Circuit for Indirect Object "
            "Identification in GPT-2 small",
            "2211.00593",
            "logit difference",
        ),
        Citation(
            "Heimersheim & Nanda 2024, How to use and interpret activation patching",
            "2404.15255",
            "section 3",
        ),
    ),
)
