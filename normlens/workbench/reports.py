"""The explorer's reports: the ones that ``normlens compare`` writes, from stored results."""

from __future__ import annotations

import hashlib
import io
import json
import shlex
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from normlens.catalog import ALL, get
from normlens.comparison import models_of
from normlens.errors import LoadError, NotApplicable
from normlens.report import write_report
from normlens.results import Result
from normlens.workbench.choices import CorpusChoice, ModelChoice

REPORTS = "reports"
"""Directory of a store that holds the reports built in the explorer."""

_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip file can hold; equal reports give equal archives."""


@dataclass(frozen=True)
class BuiltReport:
    """A report on disk.

    Attributes:
        page: its ``report.html``.
        title: its heading.
        command: the command line that makes it.
        created: when, as in its provenance.
        passed: whether every self-check of its results passed.
    """

    page: Path
    title: str
    command: str
    created: str
    passed: bool

    @property
    def directory(self) -> Path:
        """All its files: page, tables, figures, provenance."""
        return self.page.parent

    def archive(self) -> bytes:
        """The directory as a zip file; equal reports give equal bytes."""
        return zipped(self.directory)


def build_report(
    results: Sequence[Result],
    out: Path,
    *,
    title: str,
    command: str,
    config: Mapping[str, Any] | None = None,
) -> BuiltReport:
    """Write a report as the command line does, in place of an earlier one at ``out``.

    Args:
        results: of any analyses.
        out: the directory to create.
        title: heading of the page; by default, where it is blank, the models' names.
        command: that makes the same report; see :func:`report_command`.
        config: options of that command; see :func:`report_config`.

    Raises:
        UsageError: there is no result.
        OutputError: ``out`` holds something else, or cannot be written.
    """
    heading = title.strip() or default_title(results)
    page = write_report(results, out, title=heading, command=command, config=config, replace=True)
    return read_report(page.parent)


def report_directory(store: Path, results: Sequence[Result], title: str) -> Path:
    """Where a report of these results lies in a store: equal numbers and title, one place."""
    said = [(r.analysis, r.models, dict(r.provenance)) for r in results]
    text = json.dumps([title.strip(), said], sort_keys=True, default=str)
    return store / REPORTS / hashlib.sha256(text.encode()).hexdigest()[:12]


def read_report(directory: Path) -> BuiltReport:
    """A report that lies in a directory.

    Raises:
        LoadError: it is not there, or not whole.
    """
    try:
        summary = json.loads((directory / "summary.json").read_text(encoding="utf-8"))
        origin = json.loads((directory / "provenance.json").read_text(encoding="utf-8"))
        return BuiltReport(
            page=directory / "report.html",
            title=summary["title"],
            command=origin["command"],
            created=origin["created"],
            passed=summary["passed"],
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LoadError(f"report {directory} cannot be read ({error}); build it again") from error


def built_reports(store: Path) -> tuple[BuiltReport, ...]:
    """The reports in a store, latest first; what cannot be read is left out."""
    found: list[BuiltReport] = []
    for summary in (store / REPORTS).glob("*/summary.json"):
        try:
            found.append(read_report(summary.parent))
        except LoadError:
            continue
    return tuple(sorted(found, key=lambda report: report.created, reverse=True))


def default_title(results: Sequence[Result]) -> str:
    """The models' names, reference first, as the command line titles a report."""
    return " · ".join(models_of(results))


def report_command(
    results: Sequence[Result],
    choices: Sequence[ModelChoice],
    corpus: CorpusChoice,
    *,
    title: str = "",
    out: str = "out/report",
) -> str:
    """The command line that makes a report of these results.

    Args:
        results: what is reported; their parameters become flags where they differ from the
            declared defaults.
        choices: the models, reference first.
        corpus: what the analyses of a corpus ran on.
        title: heading of the page, blank for the default.
        out: directory to write.

    Raises:
        NotApplicable: the models are opened in different ways; a command opens all alike.
    """
    first = choices[0]
    how = {(c.device, c.dtype, c.revision, c.convert) for c in choices}
    if len(how) > 1:
        raise NotApplicable(
            "one command opens all models alike, and these differ in device, dtype, revision or "
            "conversion; open them alike to get a command line"
        )
    words = ["normlens", "compare", *(choice.source for choice in choices)]
    names = [result.analysis for result in results]
    if set(names) != {analysis.name for analysis in ALL}:
        words += [word for name in names for word in ("--analyses", name)]
    words += _option("text", corpus.text, "books")
    words += ["--sequences", str(corpus.sequences)]
    words += _option("context", corpus.context, None)
    words += _option("bos", corpus.bos, "prepend")
    words += _option("device", first.device, "cpu")
    words += _option("dtype", first.dtype, None)
    words += _option("revision", first.revision, None)
    words += ["--convert"] if first.convert else []
    words += [word for result in results for word in _parameter_flags(result)]
    words += ["--title", title.strip()] if title.strip() else []
    return shlex.join([*words, "--out", out])


def report_config(choices: Sequence[ModelChoice], corpus: CorpusChoice) -> dict[str, Any]:
    """What was chosen, as the report's resolved configuration."""
    return {**asdict(corpus), "models": [asdict(choice) for choice in choices]}


def zipped(directory: Path) -> bytes:
    """The files below a directory as a zip file, under the directory's own name."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(path for path in directory.rglob("*") if path.is_file()):
            name = Path(directory.name, path.relative_to(directory)).as_posix()
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, path.read_bytes())
    return buffer.getvalue()


def _parameter_flags(result: Result) -> Iterator[str]:
    """Flags of the parameters that are not at their defaults; all models have the same."""
    declared: Mapping[str, FieldInfo] = get(result.analysis).parameters.__pydantic_fields__
    used: Mapping[str, Any] = result.provenance[result.models[0]].get("parameters") or {}
    for name, value in used.items():
        if name not in declared or value == _as_stored(declared[name].default):
            continue
        flag = f"--{result.analysis}.{name.replace('_', '-')}"
        if value is True:
            yield flag
            continue
        for item in value if isinstance(value, list) else [value]:
            yield from (flag, str(item))


def _as_stored(value: Any) -> Any:
    """Provenance is JSON, in which a tuple is a list."""
    return list(value) if isinstance(value, tuple) else value


def _option(name: str, value: Any, default: Any) -> list[str]:
    return [] if value == default else [f"--{name}", str(value)]
