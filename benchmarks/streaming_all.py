"""Cost of every streaming analysis of the registry in one pass, against a plain forward pass.

The unit is the same model in transformers, eager and with ``output_attentions=True``: what one
would run to look at attention by hand, before computing anything from it. Ways:

* ``eager``       that forward pass; statistics of nothing
* ``sdpa``        the model's own fused attention, without attention weights, for orientation
* ``all``         one pass of normlens with all streaming corpus analyses that apply
* each analysis   alone in a pass

Models: a random 12-layer GPT-2 (width 256, 8 x 256 tokens, vocabulary 1,000) and the bundled
books-ln (8 sequences of its longest context). A pass includes batching, bootstrap and merging,
not the few milliseconds of building tables. Times are medians of 5 interleaved rounds in one
process; memory is the peak RSS of fresh processes that run one way, less that of ``sdpa``.

    python benchmarks/streaming_all.py [analysis ...]
"""

from __future__ import annotations

import importlib
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
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from normlens import open_model
from normlens.applicability import why_not
from normlens.capture.collector import component_weights
from normlens.capture.corpus_pass import Job, run_pass
from normlens.capture.protocol import Context, Streaming
from normlens.capture.shards import ShardStore, Step
from normlens.capture.statistics import REPLICATES, poisson_weights
from normlens.capture.tree import component_tree, plain_tree
from normlens.catalog import ALL, Analysis, get
from normlens.errors import NotApplicable
from normlens.models.components import component_view
from normlens.models.lens import Lens
from normlens.runner import context_length
from normlens.text.sequences import Sequences

LAYERS, HEADS, WIDTH, VOCABULARY = 12, 8, 256, 1000
BATCH, POSITIONS, ROUNDS, WARM_UP = 8, 256, 5, 2
MODELS = ("random", "books-ln")
PLAIN = ("eager", "sdpa")
TARGET = 1.6
Run = Callable[[], None]


def random_model() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=POSITIONS, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config).eval()


def lens_of(model: str) -> Lens:
    if model == "random":
        return open_model(random_model(), name="random", tokenizer=None)
    return open_model(model)


def tokens(lens: Lens) -> Sequences:
    length, vocabulary = context_length(lens), lens.model.config.vocab_size
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, vocabulary, (BATCH, length), generator=generator)
    return Sequences(
        ids, torch.full((BATCH,), length), torch.arange(BATCH), tuple(map(str, range(BATCH))),
        "random", "none", 0, "",
    )  # fmt: skip


def plain(lens: Lens, way: str) -> Run:
    model: PreTrainedModel = lens.model
    model.set_attn_implementation(way)
    ids = tokens(lens).ids

    @torch.inference_mode()
    def run() -> None:
        model(input_ids=ids, use_cache=False, output_attentions=way == "eager")

    return run


def applying(lens: Lens, names: list[str]) -> list[Analysis]:
    """The streaming corpus analyses of these names that apply to a model."""
    return [
        analysis
        for analysis in map(get, names)
        if (analysis.style, analysis.runs_on) == ("streaming", "corpus")
        and not why_not(analysis, lens, None)
    ]


def normlens(lens: Lens, names: list[str]) -> Run:
    corpus = tokens(lens)
    analyses = applying(lens, names)
    tree, linear_maps = plain_tree(lens), None
    if any(need.of_components for analysis in analyses for need in analysis.needs):
        view = component_view(lens)
        linear_maps, tree = component_weights(view, lens), component_tree(view, lens)
    jobs: list[Job] = []
    for analysis in analyses:
        context = Context(lens, analysis.parameters(), corpus, REPLICATES, linear_maps)
        kernel = kernel_of(analysis)
        try:
            kernel.init(context)
        except NotApplicable:
            continue
        store = ShardStore(None, {})
        jobs.append(Job(analysis.name, kernel, context, analysis.needs, store))
    weights = poisson_weights(corpus.document_ids, 0)

    def run() -> None:
        run_pass(jobs, tree, corpus, batch_size=BATCH, weights=weights, report=silent)

    return run


def kernel_of(analysis: Analysis) -> Streaming:
    module, _, name = analysis.kernel.partition(":")
    return getattr(importlib.import_module(f"normlens.kernels.{module}"), name)


def silent(_step: Step) -> None:
    """Report nothing."""


def prepare(model: str, way: str, names: list[str]) -> Run:
    lens = lens_of(model)
    if way in PLAIN:
        return plain(lens, way)
    return normlens(lens, names if way == "all" else [way])


def peak_megabytes(model: str, way: str, names: list[str]) -> float:
    """Peak RSS of a fresh process that runs one way; every process imports the same modules."""
    command = [sys.executable, __file__, "--memory-of", model, way, *names]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def memory_of(model: str, way: str, names: list[str]) -> None:
    run = prepare(model, way, names)
    for _ in range(WARM_UP + 1):
        run()
    # VmHWM, since ru_maxrss starts from the parent's peak.
    status = Path("/proc/self/status").read_text(encoding="ascii")
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    print(json.dumps(int(peak.split()[1]) / 1024))


def measure(model: str, names: list[str]) -> None:
    alone = [analysis.name for analysis in applying(lens_of(model), names)]
    ways = [*PLAIN, "all", *(alone if len(alone) > 1 else [])]
    runs = {way: prepare(model, way, names) for way in ways}
    for run in runs.values():
        for _ in range(WARM_UP):
            run()
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(ROUNDS):
        for way, run in runs.items():
            started = time.perf_counter()
            run()
            seconds[way].append(time.perf_counter() - started)
    unit = statistics.median(seconds["eager"])
    memory = {way: peak_megabytes(model, way, names) for way in (*PLAIN, "all")}
    table = Table(title=f"{model}: {', '.join(alone)}; {torch.get_num_threads()} threads")
    for column in ("way", "median s", "x eager", "peak MB over sdpa"):
        table.add_column(column, justify="left" if column == "way" else "right")
    for way in ways:
        middle = statistics.median(seconds[way])
        over = f"{memory[way] - memory['sdpa']:+.0f}" if way in memory else ""
        table.add_row(way, f"{middle:.3f}", f"{middle / unit:.2f}", over)
    Console().print(table)


def main(names: list[str]) -> None:
    for model in MODELS:
        measure(model, names)
    print(f"target for all: {TARGET}x eager")


if __name__ == "__main__":
    if "--memory-of" in sys.argv:
        _, _, chosen, one_way, *rest = sys.argv
        memory_of(chosen, one_way, rest)
    else:
        main(sys.argv[1:] or [analysis.name for analysis in ALL])
