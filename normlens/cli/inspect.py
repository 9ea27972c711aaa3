"""``normlens models`` and ``normlens inspect``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import pandas as pd
from cyclopts import App, Parameter

from normlens.cli.options import ModelOptions
from normlens.cli.tables import console, print_frame

Json = Annotated[bool, Parameter(name="--json", negative=())]


def register(app: App) -> None:
    """Add the commands."""
    app.command(models)
    app.command(inspect)


def models(*, as_json: Json = False) -> int:
    """List the bundled models and those that installed packages carry.

    Parameters
    ----------
    as_json
        Print JSON on stdout instead.
    """
    from normlens.models import list_models

    frame = pd.DataFrame([asdict(entry) for entry in list_models()])
    if as_json:
        print(frame.to_json(orient="records"))
        return 0
    frame["size"] = frame.pop("size_bytes").map(lambda size: f"{size / 1e6:.1f} MB")
    frame["parameters"] = frame["parameters"].map(lambda count: f"{count / 1e6:.1f} M")
    frame["available"] = frame["available"].map({True: "yes", False: "no"})
    print_frame(frame.fillna(""))
    return 0


def inspect(model: str, *, options: ModelOptions | None = None, as_json: Json = False) -> int:
    """Open a model, verify every norm, and print its sites.

    A site is verified by recomputing its output from its spec on a sample; the residual is
    the largest deviation over the largest output.

    Example: `normlens inspect books-lnfree`

    Parameters
    ----------
    model
        Bundled id, model directory or hub id.
    as_json
        Print JSON on stdout instead.
    """
    from normlens.cli.opening import open_with
    from normlens.models import site_table

    lens = open_with(model, options or ModelOptions())
    frame = site_table(lens)
    if as_json:
        print(frame.to_json(orient="records"))
        return 0 if all(check.passed for check in lens.verification) else 1
    identity, placement = lens.identity, lens.placement
    out = console()
    out.print(f"[bold]{identity.name}[/bold]  {identity.source}", markup=True)
    out.print(f"weights sha256 {identity.weights_sha256}")
    out.print(
        f"dtype {placement.dtype} on {placement.device}; {lens.model.num_parameters():,} parameters"
    )
    if lens.lineage.ancestor:
        out.print(f"fine-tuned from {lens.lineage.ancestor} (declared)")
    if identity.quantised_from:
        out.print(f"dequantised from {identity.quantised_from}")
    print_frame(frame.drop(columns=["width", "tolerance", "path"]))
    return 0 if all(check.passed for check in lens.verification) else 1
