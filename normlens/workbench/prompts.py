"""Running prompt analyses in this process, models side by side."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normlens import catalog
from normlens.errors import UsageError
from normlens.records import Records
from normlens.results import Result, concat
from normlens.store import renamed
from normlens.workbench.choices import BosChoice, ModelChoice, distinct_names
from normlens.workbench.parameters import chosen
from normlens.workbench.pool import ModelPool, Waiting
from normlens.workbench.sources import Sources

if TYPE_CHECKING:
    from normlens.models.lens import Lens

COMMAND = "normlens app"


def run_prompt(
    pool: ModelPool,
    sources: Sources,
    choices: Sequence[ModelChoice],
    names: Sequence[str],
    parameters: Mapping[str, Mapping[str, Any]],
    *,
    bos: BosChoice,
    store: Path,
    waiting: Waiting,
) -> list[Result]:
    """Run analyses of a prompt on the chosen models, or take them from the store.

    A model is held while it runs: two sessions with one model take turns, and each gets what
    it would get alone.

    Args:
        pool: of opened models.
        sources: what may be opened.
        choices: the slots; the first is the reference.
        names: analyses of a prompt.
        parameters: by analysis name; fields that are left out take their defaults.
        bos: BOS policy.
        store: directory of results, the same as everything's.
        waiting: called with a model's name when another session has it; then it waits.

    Returns:
        One Result per name, models in slot order under their distinct names.

    Raises:
        UsageError: no model, an analysis that reads a corpus, or bad parameters.
        BadText: a prompt is empty, or longer than a model's context.
        NormlensError: a model cannot be opened.
    """
    declared = [catalog.get(name) for name in names]
    for analysis in declared:
        if analysis.runs_on != "prompt":
            raise UsageError(f"{analysis.name} reads a corpus, not a prompt; run it on one")
    if not choices:
        raise UsageError("no model to run the prompt on; choose at least one")
    objects = {
        analysis.name: chosen(analysis, parameters.get(analysis.name)) for analysis in declared
    }
    records = Records(store)
    reference = choices[0]
    compares = any(analysis.compares for analysis in declared)
    per_model: list[list[Result]] = []
    for choice, shown in zip(choices, distinct_names(choices), strict=True):
        with ExitStack() as held:
            # One order for all sessions, so that two of them never wait for each other.
            wanted = {choice, reference} if compares else {choice}
            lenses = {
                one: held.enter_context(pool.using(one, sources, waiting))
                for one in sorted(wanted, key=repr)
            }
            results = _run(lenses[choice], lenses.get(reference), names, objects, bos, store)
        cosine = _cosine(pool, sources, reference, choice, records, waiting)
        per_model.append([_placed(result, shown, cosine) for result in results])
    return [concat([results[i] for results in per_model]) for i in range(len(names))]


def _run(
    lens: Lens,
    reference: Lens | None,
    names: Sequence[str],
    parameters: Mapping[str, Any],
    bos: BosChoice,
    store: Path,
) -> list[Result]:
    from normlens.models.context import context_length
    from normlens.models.tokenizers import tokenizer_of
    from normlens.runner import run
    from normlens.text.encoding import encode_prompt

    first = catalog.get(names[0])
    prompt = dataclasses.asdict(parameters[first.name])[first.prompt_parameter]
    sequences = encode_prompt(prompt, tokenizer_of(lens), context=context_length(lens), bos=bos)
    return run(
        names,
        lens,
        sequences,
        parameters=parameters,
        store=store,
        command=COMMAND,
        reference=reference,
    )


def _cosine(
    pool: ModelPool,
    sources: Sources,
    reference: ModelChoice,
    choice: ModelChoice,
    records: Records,
    waiting: Waiting,
) -> float:
    from normlens.side_by_side import recorded_cosine

    if choice == reference:
        return 1.0
    with ExitStack() as held:
        pair = {
            one: held.enter_context(pool.using(one, sources, waiting))
            for one in sorted({choice, reference}, key=repr)
        }
        return recorded_cosine(pair[reference], pair[choice], records)


def _placed(result: Result, shown: str, cosine: float) -> Result:
    from normlens.side_by_side import with_relation

    return with_relation(renamed(result, shown), cosine)
