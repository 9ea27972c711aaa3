"""Speed of a Pre-LN model and of the same function as Pre-RMSNorm and as Pre-CRMSNorm.

A random GPT-2 of the shape of GPT-2 small (12 layers, 12 heads, width 768), 2 x 128 tokens,
float32, evaluation, one thread. The models take turns within each repeat; ratios are of
medians. The published speed-up of the whole model is 1 to 10 % (2305.14858, section 4), on a
GPU with kernels of its own; here every norm is what PyTorch offers on this machine, where a
norm takes well below a hundredth of the time and the products of matrices of width 767 cost
more than those of width 768. The last columns are the norms alone, on as many activations.

    python benchmarks/rms_speed.py
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from normlens import open_model
from normlens.models.edits import Fold, ToCrms, ToRms, convert
from normlens.models.lens import Lens

BATCH, POSITIONS, REPEATS = 2, 128, 5
VOCABULARY = 5000


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=VOCABULARY, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config)
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.normal_(module.weight, 1.0, 0.3)
            nn.init.normal_(module.bias, 0.0, 0.3)
    lens = open_model(model, name="random", tokenizer=None)
    lenses = {
        "Pre-LN": lens,
        "Pre-LN, folded": convert(lens, Fold()).lens,
        "Pre-RMSNorm": convert(lens, ToRms()).lens,
        "Pre-CRMSNorm": convert(lens, ToCrms()).lens,
    }
    forward = medians({name: model_forward(one) for name, one in lenses.items()})
    norms = medians({name: norms_forward(one) for name, one in lenses.items()})
    table = Table(title=f"{machine()}; {BATCH} x {POSITIONS} tokens, median of {REPEATS}")
    for column in ("form", "forward pass", "time over Pre-LN", "norms alone", "over Pre-LN"):
        table.add_column(column, justify="left" if column == "form" else "right")
    for name in lenses:
        table.add_row(
            name,
            f"{forward[name]:.3f} s",
            f"{forward[name] / forward['Pre-LN']:.3f}",
            f"{norms[name] * 1e3:.1f} ms",
            f"{norms[name] / norms['Pre-LN']:.2f}",
        )
    Console(width=110).print(table)


def model_forward(lens: Lens) -> Callable[[], None]:
    ids = torch.arange(BATCH * POSITIONS).reshape(BATCH, POSITIONS) * 7919 % VOCABULARY

    def run() -> None:
        lens.model(input_ids=ids, use_cache=False)

    return run


def norms_forward(lens: Lens) -> Callable[[], None]:
    modules: list[nn.Module] = [lens.module(site) for site in lens.sites]
    x = torch.randn(BATCH, POSITIONS, lens.sites[0].spec.width)

    def run() -> None:
        for module in modules:
            module(x)

    return run


@torch.inference_mode()
def medians(runs: dict[str, Callable[[], None]]) -> dict[str, float]:
    """Median wall time of each, after one round to warm up.

    All run within a repeat, another one first each time: whoever comes first finds the caches
    in another state.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    order = list(runs.items())
    for repeat in range(REPEATS + 1):
        order = [*order[1:], order[0]]
        for name, run in order:
            start = time.perf_counter()
            run()
            if repeat:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def machine() -> str:
    processor = platform.processor() or platform.machine()
    return f"{processor}, {torch.get_num_threads()} thread(s), torch {torch.__version__}"


if __name__ == "__main__":
    main()
