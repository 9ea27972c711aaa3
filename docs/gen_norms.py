"""MkDocs hook: a page for each norm kind, with a picture of its map, and one on placements.

Everything on them comes from :data:`normlens.norms.KINDS` and
:data:`normlens.decoder.PLACEMENTS`; the pictures are drawn from the float64 reference.
"""

from __future__ import annotations

import plotly.io
import torch
from gen_markdown import escape, linked, outcomes, table
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from plotly.offline import get_plotlyjs

from normlens.decoder import PLACEMENTS, BranchNorms
from normlens.figures.norm_map import Slice, figure
from normlens.norms import KINDS, KindRow, NormKind, NormSpec, apply_norm

PLOTLY = "assets/plotly.min.js"
WIDTH = 16
SIZES = (0.3, 1.0, 3.0)
REACH = 6.0
EXAMPLES = {NormKind.FIXED_SCALE: {"fixed_scale": 2.0}}
GREY = "#8a8f98"
YES = {True: "yes", False: "no"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List the kinds' pages in the navigation."""
    for entry in config.nav or []:
        if "Norm kinds" in entry:
            entry["Norm kinds"] += [{row.title: _uri(row)} for row in KINDS.values()]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    pages = {_uri(row): kind_page(row) for row in KINDS.values()}
    pages["norm-kinds/table.md"] = index()
    pages["norm-kinds/conversions.md"] = conversions()
    pages["placements.md"] = placements()
    for uri, content in pages.items():
        files.append(File.generated(config, uri, content=content))
    files.append(File.generated(config, PLOTLY, content=get_plotlyjs()))
    return files


def index() -> str:
    """Facts and outcomes of all kinds."""
    rows = [
        (
            f"[{escape(row.title)}]({row.kind.value}.md)",
            f"`{row.kind.value}`",
            YES[row.kind.has_live_scale],
            YES[row.kind.linear],
            escape(row.couples.value),
        )
        for row in KINDS.values()
    ]
    head = ("Kind", "Name", "Live scale", "Affine", "An element of the output also depends on")
    parts = (
        "# Every kind",
        table(head, rows),
        "A batch kind is described as it is in eval mode, where its statistics are constants.",
        "## What is tested",
        outcomes("norm-kinds.json", "Kind"),
    )
    return "\n\n".join(parts) + "\n"


def conversions() -> str:
    """Outcomes of the conversions on every architecture."""
    parts = (
        "# Conversions by architecture",
        "A number is the largest difference of the logits, relative to the largest logit, on a "
        "tiny random model with all parameters drawn at random, in float32. A number in brackets "
        "stands for the reason why the conversion is refused.",
        outcomes("conversions.json", "Architecture"),
    )
    return "\n\n".join(parts) + "\n"


def kind_page(row: KindRow) -> str:
    """One kind: formula, source, facts, and the picture of its map."""
    kind = row.kind
    facts = [
        ("Source", linked(row.source)),
        ("Guard against division by zero", escape(row.eps)),
        ("An element of the output also depends on", escape(row.couples.value)),
        ("Divides by a statistic of the token", YES[kind.has_live_scale]),
        ("Affine in its input", YES[kind.linear]),
        ("Annihilates", escape(row.annihilates)),
    ]
    parts = [
        f"# {escape(row.title)}",
        f"`{kind.value}`",
        f"```text\n{row.formula}\n```",
        escape(row.remark),
        table(("Property", ""), facts),
        _picture(row),
        f"One element of {WIDTH} moves while the others are held at a root mean square of "
        f"{', '.join(f'{size:g}' for size in SIZES)}. Where the curves lie on each other the map "
        "does not look at the other elements. Gain 1, no bias.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def placements() -> str:
    """Where norms stand: every row of the composed decoder."""
    rows = [
        (escape(p.title), f"`{p.name}`", f"`{p.formula}`", linked(p.source), _norms(p.attention))
        for p in PLACEMENTS.values()
    ]
    parts = (
        "# Placements",
        "`normlens.decoder` composes a model from a norm, a placement and an attention "
        "normalizer. `f` is attention or the MLP and `N` the norm. Each can be trained "
        "(`normlens family`, or a recipe with `[decoder]`), opened, and analysed like any model.",
        table(("Placement", "Name", "A branch", "Source", "Norms of attention"), rows),
    )
    return "\n\n".join(parts) + "\n"


def _norms(branch: BranchNorms) -> str:
    names = [name for name, present in vars(branch).items() if present]
    return ", ".join(names) or "none"


def _picture(row: KindRow) -> str:
    drawn = figure(slices(example(row.kind)))
    # One grey that can be read on the light and on the dark page.
    drawn.update_layout(legend_font_color=GREY)
    for axis in (drawn.update_xaxes, drawn.update_yaxes):
        axis(title_font_color=GREY, tickfont_color=GREY, gridcolor="rgba(138,143,152,0.25)")
    div = plotly.io.to_html(
        drawn, include_plotlyjs=False, full_html=False, config={"displayModeBar": False}
    )
    return f'<script src="../{PLOTLY}"></script>\n{div}'


def example(kind: NormKind) -> NormSpec:
    """The spec that the picture of a kind is drawn from."""
    return NormSpec.of({"kind": kind.value, **EXAMPLES.get(kind, {})}, WIDTH)


def slices(spec: NormSpec) -> list[Slice]:
    """The map along one element, for each size of the others."""
    moving = torch.linspace(-REACH, REACH, 121, dtype=torch.float64)
    others = torch.randn(WIDTH - 1, generator=torch.Generator().manual_seed(0)).double()
    others = (others - others.mean()) / others.square().mean().sqrt()
    found = []
    for size in SIZES:
        x = torch.cat([moving[:, None], (size * others).expand(len(moving), -1)], 1)
        y = apply_norm(spec, x, None, None).y[:, 0]
        found.append(Slice(size, tuple(moving.tolist()), tuple(y.tolist())))
    return found


def _uri(row: KindRow) -> str:
    return f"norm-kinds/{row.kind.value}.md"
