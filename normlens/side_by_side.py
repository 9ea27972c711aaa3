"""Running every analysis on several models and putting them side by side.

The first model is the reference, unless another is given. Models are opened one after
another; only the first and the reference stay open, the first for the weight cosine that
tells a lineage from a coincidence of names.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from normlens.capture.shards import Report
from normlens.errors import UsageError
from normlens.models.context import context_length
from normlens.models.lens import Lens
from normlens.models.lineage import weight_cosine
from normlens.models.tokenizers import tokenizer_of
from normlens.records import CorpusKey, Records
from normlens.results import Result, concat
from normlens.runner import run
from normlens.text import DEFAULT_CONTEXT, BosPolicy, Documents, encode


def compare(
    openers: Mapping[str, Callable[[], Lens]],
    documents: Documents,
    names: Sequence[str],
    *,
    sequences: int | None = None,
    context: int | None = None,
    bos: BosPolicy = "prepend",
    parameters: Mapping[str, Any] | None = None,
    batch_size: int = 16,
    store: Path | None = None,
    seed: int = 0,
    fresh: bool = False,
    command: str = "",
    reference: Callable[[], Lens] | None = None,
    progress: Callable[[str], Report] | None = None,
) -> list[Result]:
    """Run analyses on several models; one Result per analysis, models side by side.

    Args:
        openers: model name -> function that opens it; differences are from the first.
        documents: the corpus as text, tokenised for each model.
        names: analyses, in the order of the report.
        sequences: number of sequences, spread evenly; None takes all.
        context: tokens per sequence; None takes the smaller of 512 and the model's own.
        bos: BOS policy.
        parameters: by analysis name.
        batch_size: sequences per forward pass.
        store: directory of results, shards and records; see :mod:`normlens.records`.
        seed: of the bootstrap intervals.
        fresh: compute again even if stored.
        command: recorded in the provenance.
        reference: opens what analyses that compare set every model against; the first of
            ``openers`` where it is not given.
        progress: from a model's name, what is called after every shard.

    Raises:
        UsageError: no model.
        LoadError: a model cannot be opened.
    """
    if not openers:
        raise UsageError("no model to compare; name at least one")
    per_model: list[list[Result]] = []
    first: Lens | None = None
    compared_with = None if reference is None else reference()
    records = Records(store)
    for name, opener in openers.items():
        lens = opener()
        first = first or lens
        longest = context_length(lens)
        width = min(context or DEFAULT_CONTEXT, longest)
        corpus = encode(documents, tokenizer_of(lens), context=width, bos=bos)
        if sequences is not None:
            corpus = corpus.spread(sequences)
        key = CorpusKey(documents.sha256, corpus.tokenizer_sha256, width, bos, sequences)
        records.save_corpus(key, corpus.sha256)
        results = run(
            names,
            lens,
            corpus,
            parameters=parameters,
            batch_size=batch_size,
            store=store,
            seed=seed,
            fresh=fresh,
            command=command,
            reference=compared_with or first,
            progress=progress(name) if progress else None,
        )
        cosine = recorded_cosine(first, lens, records)
        per_model.append([with_relation(result, cosine) for result in results])
    return [concat([results[i] for results in per_model]) for i in range(len(names))]


def recorded_cosine(a: Lens, b: Lens, records: Records) -> float:
    """:func:`~normlens.models.lineage.weight_cosine`, taken from the records where it is there."""
    if a is b:
        return 1.0
    pair = (a.identity.weights_sha256, b.identity.weights_sha256)
    cosine = records.cosine(*pair)
    if cosine is None:
        cosine = weight_cosine(a, b)
        records.save_cosine(*pair, cosine)
    return cosine


def with_relation(result: Result, cosine: float) -> Result:
    """The result of one model, its weight cosine to the reference in its provenance."""
    (model,) = result.models
    origin = {**result.provenance[model], "weight_cosine_to_reference": cosine}
    return dataclasses.replace(result, provenance={model: origin})
