"""The one pass over a corpus: every streaming analysis reads the same forward passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from normlens.capture.batches import batches
from normlens.capture.forward import observe
from normlens.capture.points import Point
from normlens.capture.protocol import Context, Observed, Streaming
from normlens.capture.shards import Report, ShardStore, Step, ranges
from normlens.capture.state import State
from normlens.capture.tree import Tree
from normlens.catalog.declaration import Need
from normlens.text.sequences import Batch, Sequences


@dataclass(frozen=True)
class Job:
    """One streaming analysis in a pass."""

    name: str
    kernel: Streaming
    context: Context
    needs: frozenset[Need]
    store: ShardStore


def run_pass(
    jobs: Sequence[Job],
    tree: Tree,
    sequences: Sequences,
    *,
    batch_size: int,
    weights: Tensor,
    report: Report,
) -> dict[str, State]:
    """Run all ``jobs`` over ``sequences``; each shard computes only what is not stored.

    Args:
        jobs: analyses that share the forward passes.
        tree: what to run.
        sequences: the corpus.
        batch_size: sequences per forward pass; changes speed and memory only.
        weights: bootstrap weights ``[replicate document]``.
        report: called after every shard.
    """
    totals = {job.name: job.kernel.init(job.context) for job in jobs}
    for shard, start, stop in ranges(len(sequences)):
        stored = {job.name: job.store.load(job.name, shard) for job in jobs}
        missing = [job for job in jobs if stored[job.name] is None]
        if missing:
            needs = frozenset[Need]().union(*(job.needs for job in missing))
            fresh = {job.name: job.kernel.init(job.context) for job in missing}
            for batch in batches(
                sequences,
                start,
                stop,
                size=batch_size,
                device=tree.lens.placement.device,
                weights=weights,
            ):
                together = _Together(missing, batch)
                observed = observe(tree, batch, needs, together)
                for job in missing:
                    seen = together.share_of(job, observed)
                    job.kernel.update(fresh[job.name], batch, seen, job.context)
            for job in missing:
                job.store.save(job.name, shard, fresh[job.name])
            stored |= fresh
        for job in jobs:
            state = stored[job.name]
            assert state is not None
            totals[job.name].merge(state)
        tokens = int(sequences.lengths[:stop].sum())
        report(Step("pass", stop, len(sequences), tokens, resumed=not missing))
    return totals


def map_shards(
    label: str,
    sequences: Sequences,
    compute: Callable[[Batch], State],
    *,
    store: ShardStore,
    batch_size: int,
    device: str,
    weights: Tensor,
    report: Report,
) -> State:
    """Apply ``compute`` to every batch and reduce; what procedures get as ``map_shards``."""
    total: State | None = None
    for shard, start, stop in ranges(len(sequences)):
        state = store.load(label, shard)
        resumed = state is not None
        for batch in (
            ()
            if resumed
            else batches(sequences, start, stop, size=batch_size, device=device, weights=weights)
        ):
            part = compute(batch)
            if state is None:
                state = part
            else:
                state.merge(part)
        assert state is not None
        if not resumed:
            store.save(label, shard, state)
        if total is None:
            total = state
        else:
            total.merge(state)
        tokens = int(sequences.lengths[:stop].sum())
        report(Step(label, stop, len(sequences), tokens, resumed))
    assert total is not None
    return total


@dataclass(frozen=True)
class _Together:
    """The reductions of several analyses as one; names are told apart by the analysis."""

    jobs: Sequence[Job]
    batch: Batch

    def __call__(self, point: Point, value: Any) -> dict[str, Tensor]:
        return {
            f"{job.name}/{key}": tensor
            for job in self.jobs
            if point.need in job.needs
            for key, tensor in job.kernel.reduce(point, value, self.batch, job.context).items()
        }

    def share_of(self, job: Job, observed: Observed) -> Observed:
        """What was reduced for one analysis."""
        prefix = f"{job.name}/"
        return replace(
            observed,
            reduced={
                point: {k.removeprefix(prefix): v for k, v in kept.items() if k.startswith(prefix)}
                for point, kept in observed.reduced.items()
            },
        )
