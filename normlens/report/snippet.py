"""A chart as the few lines of Python that draw it again, made from its provenance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from normlens import catalog
from normlens.results import Result
from normlens.text.documents import BUNDLED

_CONVERTED = "eps-encoded"
_TEMPLATE = """\
from normlens import compare, figures, open_model, read_documents

models = {{
{models}
}}
(result,) = compare(
    models,
{arguments}
)
figure = figures.draw(result, {figure})
figure.show()
"""


def as_python(result: Result, figure_name: str, part: Mapping[str, int | str] | None = None) -> str:
    """Code that opens the models, runs the analysis and draws the figure.

    What cannot be known from the provenance stands in a comment: models that were in memory,
    edits made after opening, and where a text of one's own lies.

    Args:
        result: of any number of models.
        figure_name: as declared, e.g. ``scale:by_site``.
        part: of the model that the figure draws, where it draws one (``layer``, ``head``).
    """
    origins = [dict(result.provenance.get(model, {})) for model in result.models]
    declared = catalog.get(result.analysis)
    models = [_entry(model, origin) for model, origin in zip(result.models, origins, strict=True)]
    text = _prompt if declared.runs_on == "prompt" else _corpus
    arguments = [*text(origins), *_settings(result, origins)]
    return _TEMPLATE.format(
        models="\n".join(f"    {line}" for line in models),
        arguments="\n".join(f"    {line}" for line in arguments),
        figure=", ".join([repr(figure_name), *(f"{k}={v!r}" for k, v in (part or {}).items())]),
    )


def _entry(model: str, origin: Mapping[str, Any]) -> str:
    opened, comment = _opened(model, origin)
    return f"{model!r}: lambda: {opened}," + (f"  # {comment}" if comment else "")


def _opened(model: str, origin: Mapping[str, Any]) -> tuple[str, str]:
    """The call that opens a model, and what it cannot say."""
    source, known = _source(model, str(origin.get("source", "")))
    options: dict[str, Any] = {}
    for name, default in (("device", "cpu"), ("dtype", "float32"), ("revision", None)):
        value = origin.get(name, default)
        if value != default:
            options[name] = value
    edits = [str(edit) for edit in origin.get("edits") or ()]
    if any(_CONVERTED in edit for edit in edits):
        options["convert"] = True
        edits = [edit for edit in edits if _CONVERTED not in edit]
    if source != model:
        options["name"] = model
    given = "".join(f", {name}={value!r}" for name, value in options.items())
    remarks = [] if known else ["the model was in memory: open it here"]
    if edits:
        remarks.append(f"edited after opening: {'; '.join(edits)!r}")
    return f"open_model({source!r}{given})", "; ".join(remarks)


def _source(model: str, recorded: str) -> tuple[str, bool]:
    """What ``open_model`` takes, and whether the provenance says so."""
    kind, _, rest = recorded.partition(":")
    match kind:
        case "bundled" | "directory" | "hub":
            return rest, True
        case "package":
            # Recorded are the distribution and its version; the id is the name.
            return model, True
        case "untrained":
            inner, _, seed = rest.rpartition("@")
            trained = model.removeprefix("untrained:").rpartition("@")[0] or model
            return f"untrained:{_source(trained.removeprefix('untrained:'), inner)[0]}@{seed}", True
        case _:
            return model, False


def _corpus(origins: Sequence[Mapping[str, Any]]) -> list[str]:
    name = str(origins[0].get("corpus", "books"))
    unknown = "" if name in BUNDLED else "  # the path of this text"
    return [f"read_documents({name!r}),{unknown}"]


def _prompt(origins: Sequence[Mapping[str, Any]]) -> list[str]:
    del origins
    return ["read_documents('books'),  # not read: the prompt is a parameter"]


def _settings(result: Result, origins: Sequence[Mapping[str, Any]]) -> list[str]:
    declared = catalog.get(result.analysis)
    first = origins[0]
    lines = [f"[{result.analysis!r}],"]
    if declared.runs_on == "prompt":
        lines.append("sequences=1,")
    else:
        # A model with a shorter context or fewer sequences than asked for had fewer.
        for name in ("sequences", "context"):
            counts = [int(origin[name]) for origin in origins if name in origin]
            lines += [f"{name}={max(counts)},"] if counts else []
    lines.append(f"bos={first.get('bos', 'prepend')!r},")
    defaults = declared.parameters()
    chosen = {
        name: value
        for name, value in dict(first.get("parameters") or {}).items()
        if name == "prompt" or value != getattr(defaults, name, None)
    }
    if chosen:
        lines.append(f"parameters={{{result.analysis!r}: {chosen!r}}},")
    if first.get("seed"):
        lines.append(f"seed={first['seed']},")
    lines += _reference(result)
    return lines


def _reference(result: Result) -> list[str]:
    """What models are set against, where that is not the first of them."""
    names = {origin.get("reference") for origin in result.provenance.values()} - {None}
    if len(names) != 1:
        return []
    (name,) = map(str, names)
    if name == result.models[0]:
        return []
    opened, comment = _opened(name, result.provenance.get(name, {"source": f"package:{name}"}))
    return [f"reference=lambda: {opened}," + (f"  # {comment}" if comment else "")]
