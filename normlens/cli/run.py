"""``normlens run``: analyses on models, from the command line."""

from __future__ import annotations

import difflib
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from normlens.catalog import ALL, get
from normlens.cli.options import (
    ModelOptions,
    StoreOptions,
    TextOptions,
)
from normlens.cli.parameters import AnalysisFlags, chosen_parameters
from normlens.cli.tables import console, print_result
from normlens.errors import UsageError
from normlens.results import Check, Headline, Result, nan_to_none

NAMES = tuple(analysis.name for analysis in ALL)
WATCHED = "--progress-file"


def register(app: App) -> None:
    """Add the command."""
    app.command(run)


def run(
    *names: str,
    reference: str | None = None,
    out: Path | None = None,
    force: Annotated[bool, Parameter(negative=())] = False,
    dry_run: Annotated[bool, Parameter(negative=())] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
    progress_file: Path | None = None,
    model_options: ModelOptions | None = None,
    text_options: TextOptions | None = None,
    store_options: StoreOptions | None = None,
    analysis_flags: AnalysisFlags | None = None,  # pyright: ignore[reportInvalidTypeForm] made from the registry
) -> int:
    """Run analyses on one or several models and print what they found.

    Analyses and models may come in any order; every word that is the name of an analysis
    is one. Streaming analyses of a model share one pass over the text. Interrupted, the
    same command goes on where it stopped.

    Examples:
    `normlens run scale output books-ln`

    `normlens run logit-attribution books-ln books-lnfree --sequences 512 --out out/dla`

    `normlens run prompt-attribution smollm2-135m --prompt-attribution.prompt "The sun is"`

    `normlens run divergence books-lnfree --reference books-ln`

    Parameters
    ----------
    names
        Analyses and models.
    reference
        Model that analyses which compare set every other against; by default the first.
    out
        Save each result to a directory under this one.
    force
        Replace results that are there already.
    dry_run
        Print tokens, passes, memory and time instead of running.
    as_json
        Print headline numbers and checks as JSON on stdout.
    progress_file
        Keep this JSON file up to date for another process: state (running, done, failed,
        cancelled), model, step, sequences done and in total, tokens, seconds, message.
    """
    analyses = [name for name in names if name in NAMES]
    models = [name for name in names if name not in NAMES]
    _require_both(analyses, models)
    model_options = model_options or ModelOptions()
    text_options = text_options or TextOptions()
    store_options = store_options or StoreOptions()
    check_text_options(text_options)
    refuse_existing(out, analyses, force=force)

    from normlens.cli.opening import display_name, open_with
    from normlens.cli.progress import watched_progress
    from normlens.side_by_side import compare
    from normlens.text import read_documents

    documents = read_documents(text_options.text)
    store = None if dry_run else store_options.root()
    openers = {
        display_name(model): partial(open_with, model, model_options, store) for model in models
    }
    parameters = chosen_parameters(analysis_flags)
    if dry_run:
        from normlens.cli.dry_run import print_estimate

        for opener in openers.values():
            print_estimate(opener(), documents, text_options, analyses, parameters)
        return 0
    with watched_progress(progress_file) as progress:
        results = compare(
            openers,
            documents,
            analyses,
            sequences=text_options.sequences or None,
            context=text_options.context,
            bos=text_options.bos,
            parameters=parameters,
            batch_size=text_options.batch_size,
            store=store,
            seed=store_options.seed,
            fresh=store_options.fresh,
            command=command_line(),
            reference=None
            if reference is None
            else partial(open_with, reference, model_options, store),
            progress=progress,
        )
    for result in results:
        if out is not None:
            result.save(out / result.analysis, replace=force)
        if not as_json:
            print_result(result)
    if as_json:
        print(json.dumps({result.analysis: headline_json(result) for result in results}))
    elif out is not None:
        console().print(f"results in {out}")
    return 0 if all(result.passed for result in results) else 1


def command_line() -> str:
    """The command as it can be typed again; where progress was written does not belong to it."""
    words = list(sys.argv[1:])
    if WATCHED in words:
        at = words.index(WATCHED)
        del words[at : at + 2]
    words = [word for word in words if not word.startswith(f"{WATCHED}=")]
    return shlex.join(["normlens", *words])


def check_text_options(options: TextOptions) -> None:
    """Refuse counts that mean nothing.

    Raises:
        UsageError: a negative number of sequences, or a batch or context below its minimum.
    """
    if options.sequences < 0:
        raise UsageError(f"--sequences is {options.sequences}; give 1 or more, or 0 for all")
    if options.batch_size < 1:
        raise UsageError(f"--batch-size is {options.batch_size}; give 1 or more")
    if options.context is not None and options.context < 2:
        raise UsageError(f"--context is {options.context}; give 2 tokens or more")


def refuse_existing(out: Path | None, analyses: Sequence[str], *, force: bool) -> None:
    """Refuse an output that exists before anything is computed.

    Raises:
        UsageError: a result directory exists and ``force`` is off.
    """
    if out is None or force:
        return
    for name in analyses:
        if (out / name).exists():
            raise UsageError(f"{out / name} exists already; choose another --out or pass --force")


def headline_json(result: Result) -> dict[str, Any]:
    """Headline numbers, checks and reasons of a result as JSON data."""

    def rows(items: Sequence[Headline] | Sequence[Check]) -> list[dict[str, Any]]:
        return [nan_to_none(asdict(item)) for item in items]

    return {
        "headline": {model: rows(items) for model, items in result.headline.items()},
        "checks": {model: rows(items) for model, items in result.checks.items()},
        "not_applicable": dict(result.not_applicable),
        "warnings": list(result.warnings),
    }


def _require_both(analyses: Sequence[str], models: Sequence[str]) -> None:
    if not analyses:
        for model in models:
            close = difflib.get_close_matches(model, NAMES, n=1)
            if close:
                get(model)
        raise UsageError(f"name at least one analysis: {', '.join(NAMES)}")
    if not models:
        raise UsageError("name at least one model; `normlens models` lists the bundled ones")
    for model in models:
        if Path(model).exists() or "/" in model:
            continue
        close = difflib.get_close_matches(model, NAMES, n=1, cutoff=0.8)
        if close:
            get(model)
