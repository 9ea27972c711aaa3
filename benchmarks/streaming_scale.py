"""Streaming scale statistics: time and memory over a plain forward pass.

A random 12-layer GPT-2 (width 256, 8 x 256 tokens, vocabulary 1,000). Four ways to the same
numbers, per norm the mean and standard deviation of the scale over all tokens:

* ``plain``       the HF sdpa forward alone, statistics of nothing: the unit of comparison
* ``normlens``    the ``scale`` analysis as shipped (quantiles, bootstrap and all)
* ``tl norms``    TransformerLens, run_with_cache over the norms' hook_scale
* ``tl all``      TransformerLens, run_with_cache over everything

Times are medians of 5 interleaved rounds in one process; memory is the peak RSS of fresh
processes that run one way, less that of ``plain``.

    python benchmarks/streaming_scale.py
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from transformers import GPT2Config, GPT2LMHeadModel

LAYERS, HEADS, WIDTH, VOCABULARY = 12, 8, 256, 1000
BATCH, POSITIONS, ROUNDS, WARM_UP = 8, 256, 5, 2
WAYS = ("plain", "normlens", "tl norms", "tl all")
TIME_TARGET, MEMORY_TARGET_MB = 1.15, 50
Run = Callable[[], dict[str, float]]


def random_model() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=POSITIONS, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config).eval()


def tokens() -> torch.Tensor:
    return torch.randint(
        0, VOCABULARY, (BATCH, POSITIONS), generator=torch.Generator().manual_seed(1)
    )


def plain() -> Run:
    model, ids = random_model(), tokens()

    @torch.inference_mode()
    def run() -> dict[str, float]:
        model(input_ids=ids, use_cache=False)
        return {}

    return run


def normlens() -> Run:
    from normlens import open_model
    from normlens.capture.batches import batches
    from normlens.capture.forward import observe
    from normlens.capture.protocol import Context
    from normlens.capture.statistics import REPLICATES, poisson_weights
    from normlens.capture.tree import plain_tree
    from normlens.catalog import get
    from normlens.kernels.scale import KERNEL
    from normlens.text.sequences import Sequences

    lens, ids = open_model(random_model(), name="random", tokenizer=None), tokens()
    corpus = Sequences(
        ids, torch.full((BATCH,), POSITIONS), torch.arange(BATCH), tuple(map(str, range(BATCH))),
        "random", "none", 0, "",
    )  # fmt: skip
    scale = get("scale")
    context = Context(lens, scale.parameters(), corpus, REPLICATES)
    weights = poisson_weights(corpus.document_ids, 0)
    (batch,) = batches(corpus, 0, BATCH, size=BATCH, device="cpu", weights=weights)
    tree = plain_tree(lens)

    def run() -> dict[str, float]:
        state = KERNEL.init(context)
        KERNEL.update(state, batch, observe(tree, batch, scale.needs), context)
        count = state.tensors["n.first"] + state.tensors["n.rest"]
        sums = state.tensors["sums.first"] + state.tensors["sums.rest"]
        mean = sums[0] / count
        sd = (sums[1] / count - mean.square()).sqrt()
        return {
            f"{site.order}": float(m + s) for site, m, s in zip(lens.sites, mean, sd, strict=True)
        }

    return run


def transformer_lens(everything: bool) -> Run:
    from transformer_lens.model_bridge import NormalizationBridge
    from transformer_lens.model_bridge.sources import build_bridge_from_module

    model, ids = random_model(), tokens()
    bridge = build_bridge_from_module(model, "GPT2LMHeadModel", hf_config=model.config)
    for module in bridge.modules():
        if isinstance(module, NormalizationBridge):
            module.use_native_layernorm_autograd = True
    names = [f"blocks.{i}.ln{k}.hook_scale" for i in range(LAYERS) for k in (1, 2)]
    names.append("ln_final.hook_scale")

    @torch.inference_mode()
    def run() -> dict[str, float]:
        chosen = None if everything else names
        _, cache = bridge.run_with_cache(ids, names_filter=chosen)
        scales = [cache[name].double().flatten() for name in names]
        return {f"{i}": float(s.mean() + s.std(correction=0)) for i, s in enumerate(scales)}

    return run


def prepare(way: str) -> Run:
    makers = {
        "plain": plain,
        "normlens": normlens,
        "tl norms": lambda: transformer_lens(False),
        "tl all": lambda: transformer_lens(True),
    }
    return makers[way]()


def peak_megabytes(way: str) -> float:
    """Peak RSS of a fresh process that runs one way; every process imports the same modules."""
    done = subprocess.run(
        [sys.executable, __file__, "--memory-of", way], check=True, capture_output=True, text=True
    )
    return float(json.loads(done.stdout.splitlines()[-1]))


def memory_of(way: str) -> None:
    # Imported for their memory alone.
    import transformer_lens  # noqa: F401 - for its memory

    import normlens.kernels.scale  # noqa: F401 - likewise

    run = prepare(way)
    for _ in range(WARM_UP + 1):
        run()
    # VmHWM, since ru_maxrss starts from the parent's peak.
    status = Path("/proc/self/status").read_text(encoding="ascii")
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    print(json.dumps(int(peak.split()[1]) / 1024))


def main() -> None:
    runs = {way: prepare(way) for way in WAYS}
    for run in runs.values():
        for _ in range(WARM_UP):
            run()
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    found: dict[str, dict[str, float]] = {}
    for _ in range(ROUNDS):
        for way, run in runs.items():
            started = time.perf_counter()
            found[way] = run()
            seconds[way].append(time.perf_counter() - started)
    for way in ("tl norms", "tl all"):
        worst = max(abs(found[way][k] / v - 1) for k, v in found["normlens"].items())
        assert worst < 1e-4, f"{way} and normlens disagree by {worst:.1e}"
    unit = statistics.median(seconds["plain"])
    memory = {way: peak_megabytes(way) for way in WAYS}
    table = Table(
        title=f"{LAYERS} layers, d={WIDTH}, {BATCH} x {POSITIONS} tokens, "
        f"{torch.get_num_threads()} threads"
    )
    for column in ("way", "median s", "x plain", "peak MB over plain"):
        table.add_column(column, justify="left" if column == "way" else "right")
    for way in WAYS:
        ratio = statistics.median(seconds[way]) / unit
        table.add_row(
            way, f"{ratio * unit:.3f}", f"{ratio:.2f}", f"{memory[way] - memory['plain']:+.0f}"
        )
    Console().print(table)
    print(f"targets for normlens: {TIME_TARGET}x, +{MEMORY_TARGET_MB} MB")


if __name__ == "__main__":
    if "--memory-of" in sys.argv:
        memory_of(sys.argv[-1])
    else:
        main()
