# ---
# jupyter:
#   jupytext:
#     formats: py:percent
# ---

# %% [markdown]
# # Is there entropic overload without norms?
#
# **Question.** Models *trained* without normalization are reported to overload early heads with
# entropy and to let deep ones collapse. Does a model whose norms were removed *after* training
# do the same?
#
# **Published** (Jha & Reagen 2024, arXiv:2410.09637): GPT-2, 12 layers, width 768, T = 128, on
# code. Heads are binned by quarters of the largest head entropy of *their own model*. With
# LayerNorm about 90 % of the heads lie in the two middle quarters; without norms, 58 % lie in
# the top quarter with GELU and 23 % with ReLU; a model of attention alone has 32.6 / 9.7 / 12.5 /
# 45.1 % from the lowest quarter to the highest.
#
# **Ours.** The bundled models at T = 128 and one of the same shape before any training, in the
# published bins and in bins that compare across models: entropy over the logarithm of the
# number of visible keys.

# %%
import sys
from functools import partial
from pathlib import Path

import pandas as pd

import normlens
from normlens import figures
from normlens.report import write_report

# %% tags=["parameters"]
MODELS = [name for name in sys.argv[1:] if "__file__" in globals()] or [
    "books-ln",
    "books-control",
    "books-lnfree",
    "untrained:books-ln",
]
SEQUENCES = 64
CONTEXT = 128
OUT = Path("out/analyses/entropic_overload")

# %%
models = {name: partial(normlens.open_model, name) for name in MODELS}
(result,) = normlens.compare(
    models,
    normlens.read_documents("books"),
    ["attention-entropy"],
    sequences=SEQUENCES,
    context=CONTEXT,
)

# %% [markdown]
# ## Shares of heads, from the lowest quarter to the highest

# %%
PUBLISHED = {
    "published: LayerNorm": "about 90 % in the middle two",
    "published: no norm, GELU": "58 % in the top one",
    "published: no norm, ReLU": "23 % in the top one",
    "published: attention alone": "32.6 / 9.7 / 12.5 / 45.1 %",
}
bins = result.tables["bins"]
shares = bins.pivot_table(
    index="model", columns=["mode", "quarter"], values="share", sort=False
).reindex(result.models)
print((100 * shares).round(1).to_string())
print(pd.Series(PUBLISHED).to_string())

# %%
figures.of(result)["attention_entropy:quarters"]

# %% [markdown]
# ## Head by head
#
# The entropy of a head falls when it attends to the first token alone. Split that off before
# reading a difference in entropy as one in how a head looks at the text.

# %%
figures.of(result)["attention_entropy:entropy_map"]

# %%
figures.of(result)["attention_entropy:by_depth"]

# %% [markdown]
# ## What this comparison cannot show
#
# - **Removal is not training without norms.** The published models never had norms; ours learned
#   with them, and fine-tuning kept centring, gain and bias. Overload is a claim about training.
# - **The published bins are relative.** A model whose heads all lie at 0.1 nats fills them as
#   one whose heads all lie at 3 does; that is why the second set of bins is the main one.
# - **Untrained heads lie at the ceiling,** so a head that never learned counts as overloaded.
#   Compare with the untrained model before speaking of a pathology.
# - **One seed, one size, one kind of text.** Shares of 36 heads move in steps of 3 %.

# %%
if __name__ == "__main__" and "__file__" in globals():
    report = write_report(
        [result],
        OUT,
        title="Is there entropic overload without norms?",
        command=f"python {Path(__file__).name} {' '.join(MODELS)}",
        replace=True,
    )
    print(f"report: {report}")
