"""Dataset DLA error of all heads: the shared kernel against two vectorised baselines.

One batch of a random 12-layer GPT-2 (12 heads, width 264, 8 x 256 tokens, vocabulary 5,000;
token frequencies follow Zipf's law). All compute, per head, the sums over tokens of
``|DLA - DE|`` and ``|DE|`` from the same stored activations, in float32 unless said otherwise:
there the baselines' differences of logits cancel, so the float64 one is the reference. The
kernel also does the other 26 components. The forward pass is in the last column alone.

    python benchmarks/dla_error.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from baselines.dla_per_head import all_heads_stacked, head_by_head
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from normlens import open_model
from normlens.capture.batches import batches
from normlens.capture.collector import component_weights
from normlens.capture.forward import observe
from normlens.capture.protocol import Components, ComponentWeights, Context
from normlens.capture.statistics import REPLICATES, poisson_weights
from normlens.capture.tree import component_tree
from normlens.catalog.declaration import Need
from normlens.catalog.logit_attribution import LogitAttributionParameters
from normlens.kernels.direct_effect import direct_effects
from normlens.kernels.logit_attribution import KERNEL
from normlens.kernels.readout import read_logits
from normlens.models.components import component_view
from normlens.text.sequences import Sequences

LAYERS, HEADS, WIDTH, VOCABULARY = 12, 12, 264, 5000
BATCH, POSITIONS, REPEATS = 8, 256, 5
NEEDS = frozenset({Need.COMPONENTS, Need.LOGITS})
TARGET, TOLERANCE = 10.0, 1e-5
FORWARD, KERNEL_ROW = "forward pass with components and logits", "shared kernel"
BASELINES = (
    "baseline, head by head",
    "baseline, head by head in float64",
    "baseline, all heads stacked",
)


def main() -> None:
    lens = open_model(random_model(), name="random", tokenizer=None)
    view = component_view(lens)
    tree, weights = component_tree(view, lens), component_weights(view, lens)
    corpus = zipf_sequences()
    context = Context(lens, LogitAttributionParameters(), corpus, REPLICATES, weights)
    (batch,) = batches(
        corpus, 0, BATCH, size=BATCH, device="cpu", weights=poisson_weights(corpus.document_ids, 0)
    )
    observed = observe(tree, batch, NEEDS)
    assert observed.components is not None
    components, targets = observed.components, batch.ids.roll(-1, 1)
    double = in_float64(components, weights)

    def analysis() -> None:
        KERNEL.update(KERNEL.init(context), batch, observed, context)

    work: dict[str, Callable[[], Any]] = {
        FORWARD: lambda: observe(tree, batch, NEEDS),
        KERNEL_ROW: lambda: with_kernel(components, weights, targets),
        BASELINES[0]: lambda: head_by_head(components, weights, targets),
        BASELINES[1]: lambda: head_by_head(*double, targets),
        BASELINES[2]: lambda: all_heads_stacked(components, weights, targets),
        "whole analysis step (bootstrap, check)": analysis,
    }
    seconds = {name: median_seconds(call) for name, call in work.items()}
    kernel, forward = seconds[KERNEL_ROW], seconds[FORWARD]

    table = Table(title=f"DLA error of {LAYERS * HEADS} heads, {BATCH * POSITIONS} tokens")
    for column in ("", "seconds", "/ kernel", "/ kernel, forward included"):
        table.add_column(column, justify="left" if not column else "right")
    for name, value in seconds.items():
        whole = (value + forward) / (kernel + forward)
        table.add_row(
            name,
            f"{value:.3f}",
            f"{value / kernel:.2f}",
            "" if name == FORWARD else f"{whole:.2f}",
        )
    console = Console(width=110)
    console.print(table)
    console.print(
        f"median of {REPEATS}, {torch.get_num_threads()} thread(s); "
        f"{targets.unique().numel()} distinct targets; target for the ratio: {TARGET:g}"
    )
    exact = head_by_head(*double, targets)
    for name in (KERNEL_ROW, *BASELINES):
        worst = largest_difference(work[name](), exact)
        console.print(f"{name}: largest relative difference from float64, {worst:.1e}")
        if name == KERNEL_ROW and worst > TOLERANCE:
            raise SystemExit(f"the kernel is off by {worst:.1e}, more than {TOLERANCE:g}")


def largest_difference(sums: tuple[Tensor, Tensor], exact: tuple[Tensor, Tensor]) -> float:
    """Over heads, of both sums, relative."""
    return max(float(((a - b).abs() / b).max()) for a, b in zip(sums, exact, strict=True))


def in_float64(
    components: Components, weights: ComponentWeights
) -> tuple[Components, ComponentWeights]:
    """What the baselines read, in float64: their differences of logits cancel in float32."""
    return (
        replace(
            components, z=[z.double() for z in components.z], residual=components.residual.double()
        ),
        replace(weights, w_o=[w.double() for w in weights.w_o], w_u=weights.w_u.double()),
    )


def with_kernel(
    components: Components, weights: ComponentWeights, targets: Tensor
) -> tuple[Tensor, Tensor]:
    effects = direct_effects(components, weights, read_logits(weights, targets))
    heads = [i for i, c in enumerate(effects.components) if c.type == "head"]
    error = effects.repair.abs().sum((1, 2))[heads]
    return error, effects.effect.abs().sum((1, 2))[heads]


def median_seconds(call: Callable[[], Any]) -> float:
    call()
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def random_model() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=POSITIONS, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS,
        layer_norm_epsilon=3e-4, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter)
            if "ln_" in name:
                parameter.copy_(0.3 * noise + (1 if name.endswith("weight") else 0))
            else:
                parameter.add_(0.03 * noise)
    return model


def zipf_sequences() -> Sequences:
    generator = torch.Generator().manual_seed(0)
    frequency = 1 / torch.arange(1, VOCABULARY + 1).double()
    ids = torch.multinomial(frequency, BATCH * POSITIONS, replacement=True, generator=generator)
    rows = torch.arange(BATCH)
    names = tuple(f"document {i}" for i in range(BATCH))
    return Sequences(
        ids.view(BATCH, POSITIONS), torch.full((BATCH,), POSITIONS), rows, names,
        "Zipf", "none", 0, "",
    )  # fmt: skip


if __name__ == "__main__":
    main()
