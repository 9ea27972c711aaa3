# ---
# jupyter:
#   jupytext:
#     formats: py:percent
# ---

# %% [markdown]
# # What changes when LayerNorm is removed
#
# **Question.** A model whose LayerNorm scales were frozen to constants predicts almost as well
# as before. What became exact, what moved, and what was only the fine-tuning?
#
# **Published** (Baroni et al. 2025, arXiv:2507.02559, and the authors' result files): loss,
# calibration and divergence of GPT-2 small, error of direct logit attribution of GPT-2 small,
# sink rate of GPT-2 medium.
#
# **Ours.** The same numbers for the bundled models, or for the public checkpoints themselves:
# `python analyses/ln_removal.py gpt2-small` (also `-medium`, `-large`, `-xl`; needs the model
# hub and, beyond small, a GPU: set `DEVICE`).

# %%
import sys
from functools import partial
from pathlib import Path

import pandas as pd

import normlens
from normlens import figures
from normlens.comparison import compare_headlines
from normlens.report import write_report

SUITES = {
    "books": {
        "original": "books-ln",
        "vanilla": "books-control",
        "auxiliary": "books-aux",
        "LN-free": "books-lnfree",
    },
    **{
        f"gpt2-{size}": {
            "original": f"openai-community/{base}",
            "vanilla": f"schaeff/gpt2-{size}_vanilla{steps}",
            "LN-free": f"schaeff/gpt2-{size}_LNFree{steps}",
        }
        for size, base, steps in (
            ("small", "gpt2", 300),
            ("medium", "gpt2-medium", 500),
            ("large", "gpt2-large", 600),
            ("xl", "gpt2-xl", 800),
        )
    },
}

# %% tags=["parameters"]
SUITE = sys.argv[1] if len(sys.argv) > 1 and sys.argv[1] in SUITES else "books"
SEQUENCES = 32
DEVICE = "cpu"
OUT = Path("out/analyses/ln_removal")

# %% [markdown]
# ## The numbers
#
# Every model reads the same tokens. The vanilla control is the same fine-tuning with norms
# kept; without it, removal and fine-tuning could not be told apart.

# %%
ANALYSES = ["output", "divergence", "residual", "attention-entropy", "logit-attribution"]
models = {
    role: partial(normlens.open_model, source, name=role, device=DEVICE)
    for role, source in SUITES[SUITE].items()
}
results = normlens.compare(models, normlens.read_documents("books"), ANALYSES, sequences=SEQUENCES)

# %%
NUMBERS = {
    ("output", "cross_entropy"): "loss, nats/token",
    ("output", "entropy"): "predictive entropy, nats/token",
    ("output", "ece"): "calibration error (ECE)",
    ("divergence", "jsd"): "JSD to the original, nats",
    ("logit-attribution", "nmae_heads"): "error of DLA, mean over heads (NMAE)",
    ("residual", "first_token_ratio_largest"): "norm of the first token over the others, largest",
    ("attention-entropy", "sink_rate"): "sink rate (epsilon 0.3, T 64)",
    ("attention-entropy", "normalised_entropy"): "attention entropy over ln n",
}
PUBLISHED = {  # original, vanilla, LN-free
    ("output", "cross_entropy"): ("GPT-2 small, Pile-filtered", 2.7899, 2.8112, 2.8757),
    ("output", "entropy"): ("GPT-2 small", 3.053, 2.801, 2.794),
    ("output", "ece"): ("GPT-2 small", 0.0193, 0.0263, 0.0354),
    ("divergence", "jsd"): ("GPT-2 small", None, 0.0202, 0.0393),
    ("logit-attribution", "nmae_heads"): ("GPT-2 small, last position", 0.4907, 0.5785, 0.0),
    ("attention-entropy", "sink_rate"): ("GPT-2 medium", 0.553, None, 0.453),
}

ours = compare_headlines(results).set_index(["analysis", "headline"])
roles = ("original", "vanilla", "LN-free")
rows = {}
for key, label in NUMBERS.items():
    of, *published = PUBLISHED.get(key, ("", None, None, None))
    rows[label] = {
        **{role: ours.loc[key, f"{role} value"] for role in models},
        **{f"published {role}": value for role, value in zip(roles, published, strict=True)},
        "published for": of,
    }
table = pd.DataFrame.from_dict(rows, orient="index")
with pd.option_context("display.width", 250, "display.max_columns", None):
    print(table.to_string(float_format=lambda value: f"{value:.3g}", na_rep="–"))

# %% [markdown]
# ## Where direct logit attribution is wrong
#
# With a live final norm, taking a head away changes the scale that every other component is
# divided by; attribution through the frozen scale leaves that out. With a constant scale the
# two agree to the last bit.

# %%
by_analysis = {result.analysis: result for result in results}
figures.of(by_analysis["logit-attribution"])["logit_attribution:nmae_heads"]

# %% [markdown]
# ## Where attention went

# %%
figures.of(by_analysis["attention-entropy"])["attention_entropy:sinks"]

# %% [markdown]
# ## What this comparison cannot show
#
# - **One seed each.** Intervals are over documents; they leave out how much a second training
#   run would differ.
# - **A small model on books is not GPT-2 on web text.** The published columns stand beside ours
#   for their signs and orders of magnitude. Reproducing them takes `gpt2-small` and the authors'
#   own 10.2 M tokens of the filtered Pile; the NMAE there is of one position per sequence
#   (`--logit-attribution.mode golden`), ours of every position.
# - **Scale-free is not norm-free.** Centring, gain and bias remain in the LN-free models.
# - **The gauge.** Norms of residuals of a model with live norms have no meaning of their own;
#   only the ratio of first token to the others is compared.
# - **Equal tokens, not equal loss.** The LN-free model is a little worse, so part of every
#   difference may be that of a slightly worse model.

# %%
if __name__ == "__main__" and "__file__" in globals():
    report = write_report(
        results,
        OUT,
        title=f"What changes when LayerNorm is removed: {SUITE}",
        command=f"python {Path(__file__).name} {SUITE}",
        replace=True,
    )
    print(f"report: {report}")
