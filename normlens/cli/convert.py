"""``normlens convert``: edits of a model's norms, from the command line."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import pandas as pd
from cyclopts import App, Parameter

from normlens.cli.options import ModelOptions, TextOptions
from normlens.cli.tables import console, number, print_frame
from normlens.errors import OutputError, UsageError
from normlens.results import nan_to_none

if TYPE_CHECKING:
    from normlens.models.edits import Edit, EditCheck
    from normlens.models.lens import Lens
    from normlens.text import Sequences

Steps = Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative=())]
Flag = Parameter(negative=())


def register(app: App) -> None:
    """Add the command."""
    app.command(convert)


def convert(
    model: str,
    *,
    to: Steps = (),
    sites: str = "all",
    seed: int = 0,
    out: Path | None = None,
    storage: Literal["float64", "float32", "bfloat16", "float16"] | None = None,
    force: Annotated[bool, Flag] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
    model_options: ModelOptions | None = None,
    text_options: TextOptions | None = None,
) -> int:
    """Rewrite the norms of a model, check the logits, and save the result.

    Edits are done in the order given, each checked against the model before it. Exact ones
    keep the logits within the tolerance file or fail; where they would be wrong they refuse
    and say why.

    Exact:

    - `fold`: gains and biases into the linears that read them; fixed-scale norms vanish.
    - `rms`: LayerNorm to RMSNorm, the residual stream gets mean 0 (2305.14858).
    - `crms`: the same with one coordinate of the stream dropped, CRMSNorm.
    - `rotate`: a random basis of the stream; needs RMSNorm without gains (`rms` or `fold`).
    - `untie`: the unembedding gets a weight of its own.
    - `clean`: the public LN-free format (eps 1e12) to fixed-scale modules.
    - `eps`: fixed-scale modules to the public LN-free format.

    Not exact; the table says how far the logits move:

    - `freeze=SCALE`: divide by a constant: a number, or measured on `--text`: `mean` (first
      tokens left out), `apart` (first tokens with their own mean) or `position` (one each).
    - `kind=KIND`: another norm with the same gain and bias, such as `kind=rms_norm`;
      `kind=dyt:0.4` sets the slope too.
    - `dyt`, `eln`: DyT or ELN fitted to the curves of the norms on `--text`, the cost on
      held-out sequences of it (2503.10622, 2503.21708).

    `fold`, `freeze`, `kind`, `dyt` and `eln` take sites: `@all`, a role (`@pre_mlp`), layers
    (`@0-5`), both (`@0-5.pre_mlp`) or labels (`@3.pre_attn,final`), as `normlens inspect` prints
    them.

    Examples: `normlens convert books-ln --to rms rotate` prints what the edits do to the logits,
    `normlens convert books-ln --to crms --out out/crms` saves the model that every other
    command opens.

    `normlens convert books-lnfree --to eps --out out/hub` makes the public format.

    `normlens convert books-ln --to freeze=mean@pre_mlp kind=rms_norm@pre_attn --text mine.txt`

    `normlens convert smollm2-135m --to fold rotate --seed 7 --out out/rotated`

    Parameters
    ----------
    model
        Bundled id, model directory or hub id.
    to
        Edits in order: NAME[=VALUE][@SITES].
    sites
        Sites of the edits that take some and name none.
    seed
        Of rotations.
    out
        Directory of the edited model; without it nothing is written.
    storage
        Dtype of the saved weights; by default that of the model. A narrower one rounds.
    force
        Replace the directory if it is there already.
    as_json
        Print JSON on stdout instead of the table.
    """
    if not to:
        raise UsageError("--to is missing; name edits in order, such as --to rms rotate")
    if out is not None and out.exists() and not force:
        raise OutputError(f"output {out} exists already; choose another directory or pass --force")

    from normlens.cli.convert_fitted import fitted_edit, is_fitted
    from normlens.cli.opening import open_with
    from normlens.models.edits import convert as apply
    from normlens.models.edits.parse import Given, edit_of, parse_step
    from normlens.models.edits.saving import save_lens
    from normlens.models.opening import DTYPES

    steps = [None if is_fitted(word) else parse_step(word) for word in to]
    lens = open_with(model, model_options or ModelOptions())
    measured = any(step is None or step.measures for step in steps)
    sequences = _sequences(lens, text_options or TextOptions()) if measured else None
    given = Given(sites, seed, sequences)
    edits: list[Edit] = []
    for word, step in zip(to, steps, strict=True):
        if step is not None:
            edits.append(edit_of(step, given))
        elif sequences is not None:
            edits.append(fitted_edit(word, sites, sequences))
    done = apply(lens, *edits)
    checks = done.checks
    if out is not None:
        dtype = None if storage is None else DTYPES[storage]
        checks = (*checks, save_lens(done.lens, out, storage=dtype, replace=force))
    if as_json:
        print(json.dumps([nan_to_none(asdict(check)) for check in checks]))
        return 0
    _print(lens.identity.name, checks)
    if out is not None:
        console().print(str(out))
    return 0


def _sequences(lens: Lens, options: TextOptions) -> Sequences:
    from normlens.models.context import context_length
    from normlens.models.tokenizers import tokenizer_of
    from normlens.text import DEFAULT_CONTEXT, load_corpus

    return load_corpus(
        options.text,
        tokenizer_of(lens),
        context=options.context or min(DEFAULT_CONTEXT, context_length(lens)),
        bos=options.bos,
        sequences=options.sequences or None,
    )


def _print(name: str, checks: tuple[EditCheck, ...]) -> None:
    rows = [
        {
            "edit": check.edit,
            "exact": "yes" if check.exact else "no",
            "max |Δlogit|": check.difference,
            "of the largest logit": check.error,
            "tolerance": number(check.tolerance) if check.exact else "",
        }
        for check in checks
    ]
    print_frame(pd.DataFrame(rows), title=name)
    for check in checks:
        for note in check.notes:
            console().print(f"{check.edit}: {note}", markup=False)
