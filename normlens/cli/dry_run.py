"""``--dry-run``: what a run would cost, from one timed batch."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from normlens.capture.batches import batches
from normlens.capture.forward import observe
from normlens.capture.tree import plain_tree
from normlens.catalog import Need, get
from normlens.catalog.declaration import Extent
from normlens.cli.options import TextOptions
from normlens.cli.tables import console
from normlens.models.context import context_length
from normlens.models.lens import Lens
from normlens.models.tokenizers import tokenizer_of
from normlens.text import DEFAULT_CONTEXT, Documents, encode


def print_estimate(
    lens: Lens,
    documents: Documents,
    options: TextOptions,
    analyses: Sequence[str],
    parameters: Mapping[str, Any],
) -> None:
    """Print tokens, forward passes, memory and time of a run on one model.

    The time is that of one batch scaled up by what the analyses declare; the memory is
    weights plus what one batch of activations and logits takes.
    """
    width = min(options.context or DEFAULT_CONTEXT, context_length(lens))
    corpus = encode(documents, tokenizer_of(lens), context=width, bos=options.bos)
    if options.sequences:
        corpus = corpus.spread(options.sequences)
    declared = [get(name) for name in analyses]
    procedures = [analysis for analysis in declared if analysis.style == "procedure"]
    needs = frozenset[Need]().union(*(analysis.needs for analysis in declared))
    if procedures:
        needs |= {Need.LOGITS}
    weights = torch.ones(1, len(corpus.document_ids), dtype=torch.float64)
    size = min(options.batch_size, len(corpus))
    batch = next(batches(corpus, 0, size, size=size, device=lens.placement.device, weights=weights))
    started = time.perf_counter()
    observe(plain_tree(lens), batch, needs & {Need.NORM_MOMENTS, Need.LOGITS})
    seconds = time.perf_counter() - started
    live = sum(site.spec.kind.has_live_scale for site in lens.sites)
    extent = Extent(len(corpus), live)
    sequences = len(corpus) if len(procedures) < len(declared) else 0
    for analysis in procedures:
        chosen = parameters.get(analysis.name) or analysis.parameters()
        sequences += round(analysis.forwards(chosen, extent))
    element = torch.finfo(next(lens.model.parameters()).dtype).bits // 8
    parameters_bytes = sum(p.numel() * p.element_size() for p in lens.model.parameters())
    config = lens.model.config
    logits = size * width * config.vocab_size * element if Need.LOGITS in needs else 0
    kept = size * width * config.hidden_size * element * config.num_hidden_layers * 4
    total = seconds * sequences / size
    console().print(
        f"{lens.identity.name}: {len(corpus)} sequences, {corpus.tokens:,} tokens, "
        f"{len(corpus.document_ids)} documents; {sequences:,} sequence forward passes; "
        f"about {total:,.0f} s at {corpus.tokens / len(corpus) * size / seconds:,.0f} tokens/s; "
        f"about {(parameters_bytes + logits + kept) / 1e6:,.0f} MB "
        f"({parameters_bytes / 1e6:,.0f} MB weights)"
    )
