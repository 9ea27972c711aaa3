"""Running analyses: the only place that builds a Result.

1. Streaming analyses of one model share one pass over the corpus, and those of one prompt one
   pass over it, on the plain model or, when any of them needs components, on the component view.
2. Procedures run passes of their own.
3. Every Result is stored under the digest of all that decides its numbers and taken from
   there when asked for again.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from normlens.applicability import why_not
from normlens.capture.collector import component_weights
from normlens.capture.corpus_pass import Job, map_shards, run_pass
from normlens.capture.protocol import Context, Finding, Procedure, Streaming
from normlens.capture.shards import Report, ShardStore
from normlens.capture.statistics import REPLICATES, poisson_weights
from normlens.capture.tree import Tree, component_tree, plain_tree
from normlens.catalog import Analysis, get
from normlens.errors import NotApplicable, UsageError
from normlens.models.components import component_view
from normlens.models.context import context_length
from normlens.models.lens import Lens
from normlens.models.tokenizers import tokenizer_of
from normlens.provenance import computation_key, provenance
from normlens.results import Result
from normlens.results_build import empty_result, to_result
from normlens.store import ResultStore
from normlens.text.encoding import encode_prompt
from normlens.text.sequences import Sequences


@dataclass(frozen=True)
class Options:
    """How to run; none of these but ``seed`` changes a number beyond rounding.

    Attributes:
        batch_size: sequences per forward pass.
        seed: of the bootstrap.
        store: directory of results and shards, or None to keep nothing.
        fresh: compute again even if a result is stored.
        command: recorded in the provenance.
        reference: what analyses that compare set the model against.
    """

    batch_size: int = 16
    seed: int = 0
    store: Path | None = None
    fresh: bool = False
    command: str = ""
    reference: Lens | None = None


@dataclass(frozen=True)
class _Planned:
    analysis: Analysis
    context: Context
    key: Mapping[str, Any]

    @property
    def of_components(self) -> bool:
        return any(need.of_components for need in self.analysis.needs)


def run(
    names: Sequence[str],
    lens: Lens,
    sequences: Sequences,
    *,
    parameters: Mapping[str, Any] | None = None,
    batch_size: int = 16,
    store: Path | None = None,
    seed: int = 0,
    fresh: bool = False,
    command: str = "",
    reference: Lens | None = None,
    progress: Report | None = None,
) -> list[Result]:
    """Run analyses on one model.

    Args:
        names: registry names, e.g. ``["scale", "output"]``; results come in this order.
        lens: the opened model.
        sequences: the corpus, from :func:`normlens.load_corpus`.
        parameters: by analysis name, a parameter object or a mapping of its fields.
        batch_size: sequences per forward pass; lower it when memory is short.
        store: directory that keeps results and the shards of unfinished passes; a second
            call takes from it, an interrupted one goes on.
        seed: of the bootstrap intervals.
        fresh: compute again even if stored.
        command: recorded in the provenance.
        reference: the model that analyses which compare, such as ``divergence``, set
            ``lens`` against; without one they do not apply.
        progress: called after every shard.

    Returns:
        One Result per name. Where an analysis does not apply to the model the Result is
        empty and says why in ``not_applicable``.

    Raises:
        UnknownName: no such analysis.
        UsageError: bad parameters.
        StoreMismatch: stored shards are damaged.
    """
    options = Options(batch_size, seed, store, fresh, command, reference)
    if batch_size < 1:
        raise UsageError(f"batch size is {batch_size}; it must be at least 1")
    planned = [_plan(get(name), lens, sequences, parameters or {}, options) for name in names]
    results = ResultStore(store)
    found: dict[str, Result] = {}
    if not fresh:
        for plan in planned:
            stored = results.load(plan.key, lens.identity.name)
            if stored is not None:
                found[plan.analysis.name] = stored
    todo = [plan for plan in planned if plan.analysis.name not in found]
    report = progress or (lambda _step: None)
    for plan, finding in _findings(todo, lens, options, report):
        if isinstance(finding, NotApplicable):
            result = empty_result(plan.analysis, lens, str(finding), _origin(plan, lens, options))
        else:
            result = to_result(plan.analysis, lens, finding, _origin(plan, lens, options))
        results.save(plan.key, result)
        ShardStore(store, plan.key).clear()
        found[plan.analysis.name] = result
    return [found[name] for name in names]


def _plan(
    analysis: Analysis,
    lens: Lens,
    sequences: Sequences,
    parameters: Mapping[str, Any],
    options: Options,
) -> _Planned:
    given = parameters.get(analysis.name, {})
    chosen = analysis.parameters(**given) if isinstance(given, Mapping) else given
    if analysis.runs_on == "prompt":
        prompt = asdict(chosen)[analysis.prompt_parameter]
        sequences = encode_prompt(
            prompt, tokenizer_of(lens), context=context_length(lens), bos=sequences.bos
        )
    other = options.reference if analysis.compares else None
    context = Context(lens, chosen, sequences, REPLICATES, reference=other)
    key = computation_key(analysis, lens, sequences, asdict(chosen), options.seed, other)
    return _Planned(analysis, context, key)


def _findings(
    planned: Sequence[_Planned], lens: Lens, options: Options, report: Report
) -> Iterator[tuple[_Planned, Finding | NotApplicable]]:
    """Findings as they are made, so that each is stored before the next pass begins."""
    fitting: list[_Planned] = []
    for plan in planned:
        reason = why_not(plan.analysis, lens, options.reference)
        if reason:
            yield plan, NotApplicable(reason)
        else:
            fitting.append(plan)
    for runs_on in ("corpus", "prompt"):
        # Two analyses may be asked about different prompts.
        groups: dict[str, list[_Planned]] = {}
        for plan in fitting:
            if plan.analysis.style == "streaming" and plan.analysis.runs_on == runs_on:
                groups.setdefault(plan.context.sequences.sha256, []).append(plan)
        for group in groups.values():
            yield from _stream(group, lens, options, report)
    for plan in fitting:
        if plan.analysis.style == "procedure":
            yield plan, _proceed(plan, options, report)


def _stream(
    group: Sequence[_Planned], lens: Lens, options: Options, report: Report
) -> Iterator[tuple[_Planned, Finding | NotApplicable]]:
    tree: Tree = plain_tree(lens)
    weights = None
    if any(plan.of_components for plan in group):
        try:
            view = component_view(lens)
            weights = component_weights(view, lens)
            tree = component_tree(view, lens)
        except NotApplicable as reason:
            yield from ((plan, reason) for plan in group if plan.of_components)
            group = [plan for plan in group if not plan.of_components]
    jobs: list[tuple[_Planned, Job]] = []
    for plan in group:
        analysis, context = plan.analysis, replace(plan.context, weights=weights)
        kernel: Streaming = _kernel(analysis)
        try:
            kernel.init(context)
        except NotApplicable as reason:
            yield plan, reason
            continue
        store = ShardStore(options.store, plan.key)
        jobs.append((plan, Job(analysis.name, kernel, context, analysis.needs, store)))
    if not jobs:
        return
    sequences = jobs[0][0].context.sequences
    states = run_pass(
        [job for _, job in jobs],
        tree,
        sequences,
        batch_size=options.batch_size,
        weights=poisson_weights(sequences.document_ids, options.seed),
        report=report,
    )
    for plan, job in jobs:
        yield plan, job.kernel.finish(states[job.name], job.context)


def _proceed(plan: _Planned, options: Options, report: Report) -> Finding | NotApplicable:
    kernel: Procedure = _kernel(plan.analysis)
    lens = plan.context.lens
    mapper: Callable[..., Any] = partial(
        map_shards,
        store=ShardStore(options.store, plan.key),
        batch_size=options.batch_size,
        device=lens.placement.device,
        weights=poisson_weights(plan.context.sequences.document_ids, options.seed),
        report=report,
    )
    try:
        return kernel.run(plan.context, mapper)
    except NotApplicable as reason:
        return reason


def _kernel(analysis: Analysis) -> Any:
    module, _, name = analysis.kernel.partition(":")
    return getattr(importlib.import_module(f"normlens.kernels.{module}"), name)


def _origin(plan: _Planned, lens: Lens, options: Options) -> dict[str, Any]:
    origin = provenance(lens, plan.context.sequences, plan.key, options.batch_size, options.command)
    other = plan.context.reference
    if other is None:
        return origin
    return {
        **origin,
        "reference": other.identity.name,
        "reference_sha256": other.identity.weights_sha256,
        "reference_edits": list(other.edits),
    }
