"""``normlens compare``: every analysis that applies, models side by side, one report."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from normlens.catalog import ALL, get
from normlens.cli.options import (
    ModelOptions,
    StoreOptions,
    TextOptions,
    as_config,
)
from normlens.cli.parameters import AnalysisFlags, chosen_parameters
from normlens.cli.run import check_text_options, command_line
from normlens.cli.tables import console
from normlens.errors import UsageError


def register(app: App) -> None:
    """Add the command."""
    app.command(compare)


def compare(
    *models: str,
    out: Path,
    force: Annotated[bool, Parameter(negative=())] = False,
    analyses: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    title: str | None = None,
    js: Literal["inline", "cdn"] = "inline",
    model_options: ModelOptions | None = None,
    text_options: TextOptions | None = None,
    store_options: StoreOptions | None = None,
    analysis_flags: AnalysisFlags | None = None,  # pyright: ignore[reportInvalidTypeForm] made from the registry
) -> int:
    """Compare models side by side and write a self-contained report.

    The first model is the reference that differences are taken against. Every analysis of
    the registry runs on every model it applies to, on identical text.

    Example: `normlens compare books-ln books-control books-aux books-lnfree --out out/demo`

    Parameters
    ----------
    models
        Bundled ids, model directories or hub ids.
    out
        Directory to write; report.html is its front page.
    force
        Replace the directory if it is there already.
    analyses
        Only these analyses.
    title
        Title of the report.
    js
        inline: plotly is part of the file; cdn: it is loaded from the network.
    """
    if not models:
        raise UsageError("name at least one model; `normlens models` lists the bundled ones")
    if len(set(models)) < len(models):
        raise UsageError("a model is named twice; each model appears once in a comparison")
    model_options = model_options or ModelOptions()
    text_options = text_options or TextOptions()
    store_options = store_options or StoreOptions()
    check_text_options(text_options)
    names = [get(name).name for name in analyses] or [analysis.name for analysis in ALL]
    if out.exists() and not force:
        raise UsageError(f"{out} exists already; choose another --out or pass --force")

    from normlens.cli.opening import display_name, open_with
    from normlens.cli.progress import progress_bars
    from normlens.report import write_report
    from normlens.side_by_side import compare as run_side_by_side
    from normlens.text import read_documents

    documents = read_documents(text_options.text)
    store = store_options.root()
    openers = {
        display_name(model): partial(open_with, model, model_options, store) for model in models
    }
    with progress_bars() as progress:
        results = run_side_by_side(
            openers,
            documents,
            names,
            sequences=text_options.sequences or None,
            context=text_options.context,
            bos=text_options.bos,
            parameters=chosen_parameters(analysis_flags),
            batch_size=text_options.batch_size,
            store=store,
            seed=store_options.seed,
            fresh=store_options.fresh,
            command=command_line(),
            progress=progress,
        )
    report = write_report(
        results,
        out,
        title=title or " · ".join(openers),
        command=command_line(),
        config=as_config(model_options, text_options, store_options),
        js=js,
        replace=force,
    )
    console().print(f"report: {report}")
    return 0 if all(result.passed for result in results) else 1
