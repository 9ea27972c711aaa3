# ---
# jupyter:
#   jupytext:
#     formats: py:percent
# ---

# %% [markdown]
# # Normalization schemes under equal conditions
#
# **Question.** Trained on the same tokens in the same order, each at its own best learning rate,
# how do the normalization schemes differ in loss, gradients and attention?
#
# **Published.** Every paper orders a few schemes at its own size; the orderings stand in the
# second table, with their figures.
#
# **Ours.** The bundled family: 6 layers, width 128, 4 heads, 6.1 M tokens, learning rate from a
# sweep of three points at 1 M tokens each; `normlens family` trains it. Runs with further
# seeds, or schemes of your own, are directories on the command line:
# `python analyses/norm_family.py rms dyt runs/family/rms/seed-2/model`. Runs of one scheme
# make a band.

# %%
import json
import sys
from functools import partial
from math import inf
from pathlib import Path

import pandas as pd

import normlens
from normlens import figures
from normlens.comparison import difference
from normlens.comparison.orderings import Ordering, band, judge
from normlens.models.listing import bundled_directories
from normlens.report import write_report
from normlens.training.family import FAMILY

# %% tags=["parameters"]
BUNDLED = bundled_directories()
MODELS = [name for name in sys.argv[1:] if "__file__" in globals()] or [
    name for name in FAMILY if name in BUNDLED
]
SEQUENCES = 128
OUT = Path("out/analyses/norm_family")

# %%
cards = {
    model: json.loads((BUNDLED.get(model, Path(model)) / "normlens.json").read_text("utf-8"))
    for model in MODELS
}
scheme = {
    model if model in BUNDLED else f"{card['name']} seed {card['seed']}": card["name"]
    for model, card in cards.items()
}
openers = {
    name: partial(normlens.open_model, model, name=name)
    for name, model in zip(scheme, MODELS, strict=True)
}
results = normlens.compare(
    openers,
    normlens.read_documents("books"),
    ["output", "residual", "gradients", "attention-entropy"],
    sequences=SEQUENCES,
)
by_analysis = {result.analysis: result for result in results}


# %%
def headline(analysis: str, name: str, model: str) -> float:
    """A headline number of a model; NaN where it has none."""
    found = by_analysis[analysis].headline.get(model, ())
    return next((one.value for one in found if one.name == name), float("nan"))


def gradient_decay(model: str) -> float:
    """Gradient of the loss after the first block over that after the last, tokens not first."""
    table = by_analysis["gradients"].tables["points"]
    own = table[(table["model"] == model) & (table["group"] == "rest")].set_index("point")
    return float(own["gradient"][1] / own["gradient"][own.index.max()])


MEASURES = {
    "loss": partial(headline, "output", "cross_entropy"),
    "gradient decay": gradient_decay,
    "residual growth": partial(headline, "residual", "growth_after_block_0"),
    "overloaded heads": partial(headline, "attention-entropy", "overloaded"),
    "sink rate": partial(headline, "attention-entropy", "sink_rate"),
}
table = pd.DataFrame(
    {name: {model: measure(model) for model in scheme} for name, measure in MEASURES.items()}
)

# %% [markdown]
# ## The family
#
# Loss in nats per token over the held-out text, lower is better; its difference from the first
# scheme with a 95 % interval over documents. Gradient decay is the gradient of the loss with
# respect to the stream after the first block over that after the last one, and residual growth
# the norm after the last block over that after the first. Overloaded heads are those above three
# quarters of the logarithm of the visible keys.

# %%
first, *others = scheme
shown = table.copy()
shown.insert(1, "Δ loss", "")
for model in others:
    found = difference(by_analysis["output"], "cross_entropy", model, first)
    if found is not None:
        interval = f"[{found.low:+.3f}, {found.high:+.3f}]"
        shown.loc[model, "Δ loss"] = f"{found.value:+.3f} {interval}"
shown.insert(0, "lr", [card["lr"] for card in cards.values()])
print(shown.round(4).to_string())

# %% [markdown]
# ## Learning rates
#
# Held-out loss of each point of the sweep after 1 M tokens, infinite where it diverged. With its
# best rate at the edge of its sweep, a scheme may do better than it does here.

# %%
sweeps = {
    name: {
        point["lr"]: inf if point["held_out_loss"] is None else point["held_out_loss"]
        for point in card.get("sweep") or ()
    }
    for name, card in zip(scheme, cards.values(), strict=True)
}
print(pd.DataFrame(sweeps).T.sort_index(axis=1).round(3).to_string(na_rep=""))
for (name, points), card in zip(sweeps.items(), cards.values(), strict=True):
    for rate in card.get("diverged") or ():
        print(f"{name}: the whole run diverged at {rate:g}, {card['lr']:g} is the best rate below")
    if points and min(points, key=points.__getitem__) in (min(points), max(points)):
        print(f"{name}: the best rate lies at the edge of its sweep")

# %% [markdown]
# ## Published orderings
#
# *Shown* needs three seeds a scheme and bands that do not overlap.

# %%
NORM_FREE = "Jha & Reagen 2024, 2410.09637"
ORDERINGS = (
    Ordering("ln-gelu", "ln-relu", "loss", "perplexity 2.688 < 2.757", NORM_FREE),
    Ordering("ln-relu", "none-relu", "loss", "perplexity 2.757 < 2.936", NORM_FREE),
    Ordering("none-relu", "none-gelu", "loss", "perplexity 2.936 < 3.197", NORM_FREE),
    Ordering("none-relu", "none-gelu", "overloaded heads", "top quarter 23 % < 58 %", NORM_FREE),
    Ordering("rms", "ln-gelu", "loss", "as good", "Zhang & Sennrich 2019, 1910.07467", equal=0.02),
    Ordering("dyt", "rms", "loss", "as good at 7B to 70B", "Zhu 2025, 2503.10622", equal=0.02),
    Ordering("ln-gelu", "post-ln", "loss", "post-LN needs warm-up", "Xiong 2020, 2002.04745"),
    Ordering("sandwich", "ln-gelu", "loss", "lower at 0.4B to 3.2B", "Kim 2025, 2502.02732"),
    Ordering("sandwich", "ln-gelu", "residual growth", "linear < exp.", "Kim 2025, 2502.02732"),
    Ordering("lns", "ln-gelu", "loss", "lower at 130M to 7B", "Sun 2025, 2502.05795"),
    Ordering("lns", "ln-gelu", "residual growth", "bounded < exp.", "Sun 2025, 2502.05795"),
    Ordering("ngpt", "ln-gelu", "loss", "4 to 20 times fewer steps", "Loshchilov 2024, 2410.01131"),
    Ordering("deep-lns", "deep-pre", "loss", "lower at 130M to 7B", "Sun 2025, 2502.05795"),
    Ordering("deep-lns", "deep-pre", "residual growth", "bounded < exp.", "Sun 2025, 2502.05795"),
    Ordering("deep-sandwich", "deep-pre", "residual growth", "linear", "Kim 2025, 2502.02732"),
    Ordering("deep-pre", "deep-post", "loss", "post-LN decays", "Xiong 2020, 2002.04745"),
    Ordering("deep-post", "deep-pre", "gradient decay", "vanishes", "Kim 2025, 2502.02732"),
)
runs = {measure: values.groupby(scheme).agg(list).to_dict() for measure, values in table.items()}
verdicts = [judge(ordering, runs[ordering.measure]) for ordering in ORDERINGS]
for verdict in verdicts:
    ordering = verdict.ordering
    print(f"{ordering.measure}: {ordering.claim} ({ordering.published}; {ordering.source})")
    print(f"    {verdict.status}: {verdict.words}")
print("bands of the loss:")
for name, losses in runs["loss"].items():
    print(f"    {name}: {band(losses)}")

# %%
figures.of(by_analysis["output"])["output:loss"]

# %%
figures.of(by_analysis["gradients"])["gradients:by_depth"]

# %% [markdown]
# ## What this comparison cannot show
#
# - **One seed orders nothing.** The interval beside a difference is over documents and leaves
#   out what another initialisation would give.
# - **Six layers are not deep.** Claims about depth belong to the deep-narrow set, and those about
#   stability to rates that this sweep does not try.
# - **Equal tokens, not equal time.** A scheme that costs more per step is not charged for it.
# - **6 M tokens is early in training.** What a scheme gains late does not show.

# %%
if __name__ == "__main__" and "__file__" in globals():
    report = write_report(
        results,
        OUT,
        title="Normalization schemes under equal conditions",
        command=f"python {Path(__file__).name} {' '.join(MODELS)}",
        warnings=[f"{v.ordering.claim} in {v.ordering.measure}: {v.status}" for v in verdicts],
        replace=True,
    )
    print(f"report: {report}")
