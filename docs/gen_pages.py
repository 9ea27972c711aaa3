"""MkDocs hook: pages made from the code, so that they cannot fall behind it.

* one page per analysis of ``normlens.catalog.ALL``, and their index
* the table of architectures, from the outcomes of tests
* the tutorial, a notebook in percent format
* the command line's help, from its own declarations
* CONTRIBUTING.md and CHANGELOG.md, which live at the root of the repository
"""

from __future__ import annotations

import re
from typing import Any

import jupytext
from gen_markdown import ARXIV, ROOT, escape, outcomes, table
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pydantic import TypeAdapter

from normlens.catalog import ALL, Analysis, Citation
from normlens.cli.app import app
from normlens.results import TableSchema

ROLE = re.compile(r":(?:func|class|meth|mod|data|attr):<code>~?(?:\w+\.)*(\w+)</code>")
SUBJECT = {"corpus": "a corpus", "prompt": "one prompt"}
STYLE = {
    "streaming": "shares one forward pass with the other streaming analyses",
    "procedure": "runs passes of its own",
}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List the analyses' pages in the navigation."""
    for entry in config.nav or []:
        if "Analyses" in entry:
            entry["Analyses"] += [{analysis.title: _uri(analysis)} for analysis in ALL]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    pages = {_uri(analysis): analysis_page(analysis) for analysis in ALL}
    pages["analyses/index.md"] = analyses_index()
    pages["architectures.md"] = architectures()
    pages["tutorial.md"] = tutorial()
    pages["command-line.md"] = command_line()
    pages["contributing.md"] = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    pages["changelog.md"] = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    for uri, content in pages.items():
        files.append(File.generated(config, uri, content=content))
    return files


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Show reStructuredText roles of docstrings (``:func:`~a.b```) as plain code."""
    return ROLE.sub(r"<code>\1</code>", content)


def analyses_index() -> str:
    """The table of all analyses."""
    rows = [
        (f"[`{a.name}`]({a.name}.md)", escape(a.question), escape(SUBJECT[a.runs_on])) for a in ALL
    ]
    return f"# Analyses\n\n{table(('Analysis', 'Question', 'Runs on'), rows)}\n"


def analysis_page(analysis: Analysis) -> str:
    """One analysis: question, reading, parameters, tables, sources."""
    parts = [
        f"# {escape(analysis.title)}",
        f"*{escape(analysis.question)}*",
        f"`{analysis.name}` runs on {SUBJECT[analysis.runs_on]} and {STYLE[analysis.style]}. "
        f"Version {analysis.version}: stored results of other versions are not reused.",
        analysis.explanation,
        "## Parameters",
        _parameters(analysis),
        "## Tables",
        "Every table also has a `model` column and a `status` column "
        "(`ok`, `no_data`, `not_applicable` or `overflow`).",
        *(part for schema in analysis.tables for part in _schema(schema)),
        "## Sources",
        "\n".join(f"- {_citation(citation)}" for citation in analysis.citations),
    ]
    return "\n\n".join(parts) + "\n"


def tutorial() -> str:
    """The tutorial's notebook as Markdown, without outputs."""
    notebook = jupytext.read(ROOT / "docs" / "tutorial.py")
    notebook.metadata = {"jupytext": {"notebook_metadata_filter": "-all"}}
    return jupytext.writes(notebook, "md")


def command_line() -> str:
    """The help of every command."""
    return app.generate_docs(output_format="markdown", recursive=True)


def architectures() -> str:
    """The table of architectures, as ``make tables`` last wrote it."""
    parts = (
        "# Architectures",
        "Every cell is the outcome of tests on a tiny random model of that architecture, with all "
        "parameters drawn at random and an unusual `eps`. A number stands for the reason why "
        "something does not apply.",
        outcomes("architectures.json", "Architecture"),
    )
    return "\n\n".join(parts) + "\n"


def _uri(analysis: Analysis) -> str:
    return f"analyses/{analysis.name}.md"


def _parameters(analysis: Analysis) -> str:
    fields = TypeAdapter(analysis.parameters).json_schema().get("properties", {})
    if not fields:
        return "None."
    rows = [
        (f"`{name}`", _kind(field), f"`{field.get('default')!r}`", escape(field["description"]))
        for name, field in fields.items()
    ]
    return table(("Parameter", "Type", "Default", "Meaning"), rows)


def _kind(field: dict[str, Any]) -> str:
    """Type and bounds of a JSON-schema property in words."""
    if "enum" in field:
        return " or ".join(f"`{value}`" for value in field["enum"])
    bounds = {
        "minimum": "at least {}",
        "exclusiveMinimum": "above {}",
        "maximum": "at most {}",
        "exclusiveMaximum": "below {}",
        "maxLength": "at most {} characters",
        "minLength": "at least {} characters",
    }
    limits = [text.format(field[key]) for key, text in bounds.items() if key in field]
    return ", ".join([field.get("type", "see meaning"), *limits])


def _schema(schema: TableSchema) -> tuple[str, str, str]:
    rows = [(f"`{c.name}`", f"`{c.dtype}`", escape(c.unit), escape(c.doc)) for c in schema.columns]
    columns = table(("Column", "Type", "Unit", "Meaning"), rows)
    return f"### `{schema.name}`", escape(schema.doc), columns


def _citation(citation: Citation) -> str:
    place = f", {escape(citation.place)}" if citation.place else ""
    if ARXIV.fullmatch(citation.identifier):
        link = f"[arXiv:{citation.identifier}](https://arxiv.org/abs/{citation.identifier})"
    else:
        link = f"<{citation.identifier}>"
    return f"{escape(citation.reference)}, {link}{place}"
