"""``logit-attribution``: error of direct logit attribution over a corpus.

    NMAE = sum |DLA - DE| / sum |DE|

per component over tokens. What a token is, how components are pooled and what the bootstrap
resamples depends on the mode: ``attribution_default`` or ``attribution_golden``. Both check,
on every token they read, that all contributions add up to the model's own logit, before
soft-capping and logit scale.
"""

from __future__ import annotations

import torch

from normlens.capture.protocol import Context, Finding, Observed, Streaming
from normlens.capture.state import Reduction, State
from normlens.kernels import attribution_default, attribution_golden
from normlens.kernels.attribution_scope import (
    components_in_scope,
    conservation_check,
    weights_in_scope,
)
from normlens.kernels.attribution_tables import component_table, group_table, head_headlines
from normlens.kernels.direct_effect import component_list
from normlens.text.sequences import Batch

MODES = {"default": attribution_default, "golden": attribution_golden}


def init(context: Context) -> State:
    """Declare the statistics of the chosen mode.

    Raises:
        NotApplicable: no component view, or a final norm whose scale is unknown.
        UsageError: golden mode on sequences with BOS.
    """
    weights = weights_in_scope(context)
    count = len(component_list(weights))
    state = State()
    state.declare("n", torch.zeros(count, dtype=torch.int64))
    state.declare("conservation", torch.tensor(-torch.inf, dtype=torch.float64), Reduction.MAX)
    MODES[context.parameters.mode].declare(state, context, count)
    return state


def update(state: State, batch: Batch, observed: Observed, context: Context) -> None:
    """Add one batch."""
    weights = weights_in_scope(context)
    components, logits = components_in_scope(observed, weights)
    MODES[context.parameters.mode].update(state, batch, components, logits, weights)


def finish(state: State, context: Context) -> Finding:
    """Tables, headlines, the conservation check, and replicates of the heads' NMAE."""
    mode = MODES[context.parameters.mode]
    measured = mode.measure(state, component_list(weights_in_scope(context)), context)
    conservation = float(state.tensors["conservation"])
    return Finding(
        tables={"components": component_table(measured), "groups": group_table(measured)},
        headline=head_headlines(measured, mode.HEADLINE),
        # Nothing was summed up where no token has a target.
        checks=(conservation_check(conservation, context),) if conservation >= 0 else (),
        replicates={"nmae_heads": measured.groups["head"].replicates},
    )


KERNEL = Streaming(init, update, finish)
