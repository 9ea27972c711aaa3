"""``prompt-attribution``: contributions of every component at every position of one prompt.

The target of a position is the token that follows it, read against the vocabulary mean; at
the last position it is the chosen token, or the model's top prediction, read against the
vocabulary mean or, where ``against`` is given, against that token. Kernel and formulas:
``direct_effect``.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from normlens.capture.protocol import Context, Finding, Observed, Streaming
from normlens.capture.state import Reduction, State
from normlens.kernels.attribution_scope import (
    components_in_scope,
    conservation_check,
    weights_in_scope,
)
from normlens.kernels.attribution_tables import members, present
from normlens.kernels.direct_effect import Component, component_list, direct_effects, places
from normlens.kernels.readout import (
    VOCABULARY_MEAN,
    at_least_float32,
    read_from_logits,
    read_logits,
)
from normlens.kernels.token_strings import single_token, token_string
from normlens.models.tokenizers import tokenizer_of
from normlens.results import Headline
from normlens.text.sequences import Batch

CONSTANTS = ("norm_bias", "unembed_bias")
MEASURES = ("logit", "sum", "scale", "probability")


def init(context: Context) -> State:
    """Declare one row per position, and refuse targets that are not single tokens.

    Raises:
        NotApplicable: as ``logit-attribution``, or a model without a tokenizer.
        UsageError: ``target`` or ``against`` is not a single token.
    """
    count = len(component_list(weights_in_scope(context)))
    tokenizer_of(context.lens)
    for option in ("target", "against"):
        _chosen(context, option)
    state = State()
    state.declare("n", torch.zeros(count, dtype=torch.int64))
    state.declare("conservation", torch.tensor(-torch.inf, dtype=torch.float64), Reduction.MAX)
    for name, width, dtype in (
        ("dla", count, torch.float64),
        ("repair", count, torch.float64),
        ("constants", len(CONSTANTS), torch.float64),
        ("measures", len(MEASURES), torch.float64),
        ("tokens", 3, torch.int64),
    ):
        state.declare(name, torch.zeros(0, width, dtype=dtype), Reduction.ROWS)
    return state


def update(state: State, batch: Batch, observed: Observed, context: Context) -> None:
    """Add the prompt, the only sequence there is."""
    weights = weights_in_scope(context)
    components, raw = components_in_scope(observed, weights)
    assert observed.logits is not None
    logits = observed.logits
    last = int(batch.mask.sum()) - 1
    targets = batch.ids.roll(-1, 1)
    references = torch.full_like(targets, VOCABULARY_MEAN)
    target, against = (_chosen(context, option) for option in ("target", "against"))
    targets[0, last] = int(logits[0, last].argmax()) if target is None else target
    if against is not None:
        references[0, last] = against
    effects = direct_effects(components, weights, read_logits(weights, targets, references))
    logit = read_from_logits(raw, targets, references)
    rows = slice(0, last + 1)
    state.add("conservation", effects.discrepancy(logit)[0, rows].max())
    everything = component_list(weights)
    where = places(effects.components, everything)
    n = torch.zeros(len(everything), dtype=torch.int64)
    n[where] = last + 1
    state.add("n", n)
    for name, value in {"dla": effects.dla, "repair": effects.repair}.items():
        out = torch.zeros(last + 1, len(everything), dtype=torch.float64)
        out[:, where] = value[:, 0, rows].T.cpu()
        state.add(name, out)
    absent = torch.full_like(effects.scale, torch.nan)
    constants = [effects.constants.get(name, absent) for name in CONSTANTS]
    state.add("constants", torch.stack(constants, -1)[0, rows])
    measures = (logit, effects.total, effects.scale, _probability(logits, targets))
    state.add("measures", torch.stack(measures, -1)[0, rows])
    state.add("tokens", torch.stack((batch.ids, targets, references), -1)[0, rows])


def finish(state: State, context: Context) -> Finding:
    """Tables, headlines of the last position, and the conservation check."""
    everything = component_list(weights_in_scope(context))
    where = present(everything, state.tensors["n"])
    components = [everything[index] for index in where]
    dla, repair = state.tensors["dla"][:, where], state.tensors["repair"][:, where]
    labels = _labels(state.tensors["tokens"], context)
    measures = {
        name: column.tolist()
        for name, column in zip(MEASURES, state.tensors["measures"].unbind(1), strict=True)
    }
    heads = members(components)["head"]
    error = float(repair[-1, heads].abs().sum() / (dla + repair)[-1, heads].abs().sum())
    target = labels["target"].iloc[-1]
    return Finding(
        tables={
            "waterfall": _waterfall(components, dla, repair, state.tensors["constants"], labels),
            "positions": labels.assign(**measures),
        },
        headline=(
            Headline("target_logit", measures["logit"][-1], "logits", f"logit of {target!r}", 1),
            Headline("target_probability", measures["probability"][-1], "1", f"of {target!r}", 1),
            Headline(
                "nmae_heads", error, "1", "sum|DLA - DE| / sum|DE| over heads, last position", 1
            ),
        ),
        checks=(conservation_check(float(state.tensors["conservation"]), context),),
    )


KERNEL = Streaming(init, update, finish)


def _chosen(context: Context, option: str) -> int | None:
    text = {"target": context.parameters.target, "against": context.parameters.against}[option]
    return single_token(tokenizer_of(context.lens), text, option) if text else None


def _probability(
    logits: Float[Tensor, "batch pos vocab"], targets: Int[Tensor, "batch pos"]
) -> Float[Tensor, "batch pos"]:
    total = logits.to(at_least_float32(logits.dtype)).logsumexp(-1)
    return (logits.gather(-1, targets[..., None])[..., 0].double() - total.double()).exp()


def _labels(tokens: Int[Tensor, "pos 3"], context: Context) -> pd.DataFrame:
    tokenizer = tokenizer_of(context.lens)
    rows = []
    for position, (token, target, reference) in enumerate(tokens.tolist()):
        label = token_string(tokenizer, target)
        if reference != VOCABULARY_MEAN:
            label += f" − {token_string(tokenizer, reference)}"
        rows.append((position, token_string(tokenizer, token), label))
    return pd.DataFrame(rows, columns=["position", "token", "target"])


def _waterfall(
    components: list[Component],
    dla: Float[Tensor, "pos component"],
    repair: Float[Tensor, "pos component"],
    constants: Float[Tensor, "pos constant"],
    labels: pd.DataFrame,
) -> pd.DataFrame:
    known = [i for i in range(len(CONSTANTS)) if not bool(constants[:, i].isnan().all())]
    terms = [*components, *(Component(CONSTANTS[i], CONSTANTS[i]) for i in known)]
    blank = torch.full((len(labels), len(known)), torch.nan, dtype=torch.float64)
    contribution = torch.cat([dla, constants[:, known]], 1).flatten()
    repairs = torch.cat([repair, blank], 1).flatten().numpy()
    frame = labels.loc[np.repeat(labels.index, len(terms))].reset_index(drop=True)
    times = len(labels)
    return frame.assign(
        component=[t.name for t in terms] * times,
        layer=pd.array([t.layer for t in terms] * times, dtype="Int64"),
        head=pd.array([t.head for t in terms] * times, dtype="Int64"),
        type=[t.type for t in terms] * times,
        dla=contribution.numpy(),
        direct_effect=contribution.numpy() + repairs,
        self_repair=repairs,
    )
