# ---
# jupyter:
#   jupytext:
#     formats: py:percent
# ---

# %% [markdown]
# # Outlier dimensions, massive activations and attention sinks
#
# **Question.** A few coordinates of the residual stream are thousands of times the median, and
# heads without anything to do attend to the token that carries them. Which of these does a model
# have, does its loss need them, and what is left of them when the scales are frozen?
#
# **Published.** Massive activations (Sun et al. 2024, arXiv:2402.17762): GPT-2 small, dimension
# 447 (then 138), first token, about 2,500 to 3,000 in blocks 1 to 10; setting them to zero
# changes its perplexity from 30.219 to 30.214, that of LLaMA-2-7B from 5.13 to 8,977; setting
# them to their mean does not. Sink rate (Gu et al. 2024, arXiv:2410.10781), epsilon 0.3, T 64:
# GPT-2 XL 77 %, Mistral-7B 97.5 %. LN-free GPT-2 medium loses the plateau of the first token's
# norm (about 4,000 to 550), its sink rate goes from 55.3 to 45.3 % (Baroni et al. 2025,
# arXiv:2507.02559).
#
# **Ours.** Two bundled models and SmolLM2-135M; name others on the command line:
# `python analyses/outliers_and_sinks.py gemma3-270m`.

# %%
import sys
from functools import partial
from pathlib import Path

import normlens
from normlens import figures
from normlens.comparison import compare_headlines
from normlens.report import write_report

# %% tags=["parameters"]
MODELS = [name for name in sys.argv[1:] if "__file__" in globals()] or [
    "books-ln",
    "books-lnfree",
    "smollm2-135m",
]
SEQUENCES = 16
CONTEXT = 128
OUT = Path("out/analyses/outliers_and_sinks")

# %%
models = {name: partial(normlens.open_model, name) for name in MODELS}
results = normlens.compare(
    models,
    normlens.read_documents("books"),
    ["outliers", "outlier-ablation", "attention-entropy"],
    sequences=SEQUENCES,
    context=CONTEXT,
    parameters={"outliers": {"rotate": True}},
)
by_analysis = {result.analysis: result for result in results}

# %% [markdown]
# ## The numbers

# %%
numbers = compare_headlines(results).set_index(["analysis", "headline"])
print(numbers[[f"{name} value" for name in MODELS]].to_string(float_format="{:.4g}".format))

# %% [markdown]
# ## Which activations are massive

# %%
massive = by_analysis["outliers"].tables["massive"]
print(massive.head(20).to_string(index=False))

# %%
figures.of(by_analysis["outliers"])["outliers:magnitude"]

# %% [markdown]
# ## Basis or token?
#
# In a random orthonormal basis outlier dimensions and the kurtosis over dimensions vanish, while
# the norm of every token stays: what a rotation removes is a matter of the basis, what it keeps
# is a matter of the token.

# %%
figures.of(by_analysis["outliers"])["outliers:kurtosis"]

# %% [markdown]
# ## Does the loss need them, does the sink?

# %%
ablation = by_analysis["outlier-ablation"]
print(ablation.tables["effects"].to_string(index=False))
print(ablation.tables["sinks"].to_string(index=False))

# %%
figures.of(ablation)["outlier_ablation:effects"]

# %% [markdown]
# ## What this comparison cannot show
#
# - **Three models are no law.** They differ in size, data, tokenizer and age of training.
# - **SmolLM2-135M comes from a 4-bit file.** Its weights are dequantised: what they say about
#   weight outliers is said about the quantiser. Its activations are those of the quantised model.
# - **An ablation is not a retraining.** A model trained without massive activations may do
#   without the sink as well; zeroing them here shows what this model relies on now.
# - **Thresholds were made for larger models.** 100 and 1,000 times the median are parameters; an
#   empty table of a small model says that it has none of that size.
# - **A model with live norms has no residual scale of its own,** so absolute thresholds on the
#   residual stream do not compare between models; ratios to the median do.

# %%
if __name__ == "__main__" and "__file__" in globals():
    report = write_report(
        results,
        OUT,
        title="Outlier dimensions, massive activations and attention sinks",
        command=f"python {Path(__file__).name} {' '.join(MODELS)}",
        replace=True,
    )
    print(f"report: {report}")
