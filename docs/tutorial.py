# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Five minutes with normlens
#
# This page is a notebook: `docs/tutorial.py` in the repository, which Jupyter opens with
# jupytext (`pip install 'normlens[notebooks]'`). The tests execute it. It needs a CPU and no
# network.
#
# Two small GPT-2 models come with normlens. `books-ln` has live LayerNorms. `books-lnfree` was
# fine-tuned from it while the scale of every norm was frozen, one after another. What changed?

# %%
import tempfile
from pathlib import Path

import normlens
from normlens import figures
from normlens.comparison import caveats, compare_headlines
from normlens.models import site_table, tokenizer_of
from normlens.side_by_side import compare
from normlens.text import read_documents

live = normlens.open_model("books-ln")
free = normlens.open_model("books-lnfree")

# %% [markdown]
# ## What was opened
#
# Opening finds every norm and recomputes its output from what normlens understood of it.
# `residual` is the largest deviation over the largest output; a norm that does not match would
# be `opaque`, and no scale would be made up for it.

# %%
columns = ["label", "kind", "eps", "gain_median", "fixed_scale", "residual", "verified"]
site_table(live)[columns].head(4)

# %%
site_table(free)[columns].head(4)

# %% [markdown]
# The second model divides by constants. Centring, gain and bias are still there: scale-free does
# not mean without norms.
#
# ## Running analyses
#
# A corpus is tokenised once. Whether every sequence starts with a BOS token is stated, because
# the first position behaves unlike the others.

# %%
corpus = normlens.load_corpus("books", tokenizer_of(live), context=128, sequences=32)
corpus.name, corpus.bos, corpus.tokens

# %% [markdown]
# `run` gives one result per analysis. Those that can share a forward pass do.

# %%
(of_live,) = normlens.run(["scale"], live, corpus)
of_live

# %% [markdown]
# Every number has a unit, the n it rests on and, where one exists, a 95 % interval over
# documents. Open a table for its first rows, and the checks, which are made in the run itself.
#
# ## Side by side
#
# `compare` tokenises a text for each model, runs the analyses on each, and measures whether the
# weights descend from one another. The first model is the reference.

# %%
models = {"books-ln": lambda: live, "books-lnfree": lambda: free}
scale, attribution = compare(
    models, read_documents("books"), ["scale", "logit-attribution"], sequences=32, context=128
)
attribution

# %% [markdown]
# `nmae_heads` is the error of direct logit attribution: how far the direct effect it reads off
# with the scale held at its value is from the effect of really taking the head away. Here are
# the values again with their difference, from paired documents.

# %%
compare_headlines([attribution]).filter(regex="headline|value|delta")

# %% [markdown]
# With fixed scales there is nothing left to hold, and attribution is exact.
#
# Before believing a difference, read what stands in its way. One entry below says that a control
# is missing: `books-control` saw the same fine-tuning with its norms kept, and belongs in a real
# comparison.

# %%
for caveat in caveats([attribution]):
    print(f"{caveat.name}: {caveat.text}\n")

# %% [markdown]
# ## Figures
#
# A figure takes a result, with any number of models in it.

# %%
drawn = figures.of(scale)
print(list(drawn))
next(iter(drawn.values()))

# %% [markdown]
# Every figure is drawn from tables, which are yours.

# %%
heads = attribution.tables["components"].query("type == 'head'")
heads.nlargest(4, "nmae")[["model", "component", "dla", "direct_effect", "nmae"]]

# %% [markdown]
# ## Keeping results
#
# A saved result is JSON and Parquet, and is read where torch is not installed.

# %%
with tempfile.TemporaryDirectory() as directory:
    path = Path(directory) / "attribution"
    attribution.save(path)
    print(sorted(file.name for file in path.iterdir()))
    again = normlens.Result.load(path)
assert again.headline == attribution.headline

# %% [markdown]
# ## Where to go next
#
# - `normlens compare books-ln books-control books-aux books-lnfree` writes all of this, with both
#   controls, as one HTML page.
# - [How to](how-to.md): your own model, one analysis, a fine-tuning that removes norms.
# - [Analyses](analyses/index.md): what each one computes, column by column.
# - [Gotchas](gotchas.md): the traps of comparing models with and without a live scale.
