"""A Lens is a model that has been opened, inspected and verified; it is data.

No method runs the model: functions take a Lens.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from normlens.norms.spec import NormSpec


class Role(StrEnum):
    """Where a norm sits.

    PRE_* norms stand before a branch, POST_* norms after it: on its output, or on the stream
    it was added to (``NormSite.on_stream``). EXIT_* are on the stream where the output has a
    norm of its own too. Q, K, V, UP and GATE follow a branch's first linears; PRE_O and
    PRE_DOWN precede its last one.
    """

    PRE_ATTN = "pre_attn"
    PRE_MLP = "pre_mlp"
    POST_ATTN = "post_attn"
    POST_MLP = "post_mlp"
    EXIT_ATTN = "exit_attn"
    EXIT_MLP = "exit_mlp"
    Q = "q"
    K = "k"
    V = "v"
    UP = "up"
    GATE = "gate"
    PRE_O = "pre_o"
    PRE_DOWN = "pre_down"
    EMBED = "embed"
    FINAL = "final"
    LATENT = "latent"
    GATED = "gated"
    ROUTER = "router"
    OTHER = "other"


class Layout(StrEnum):
    """Axes of a norm's input before the normalised one, which is always the last."""

    BATCH_POS = "batch pos"
    PACKED = "(batch pos)"
    BATCH_POS_HEAD = "batch pos head"
    BATCH_HEAD_POS = "batch head pos"

    @property
    def per_head(self) -> bool:
        """Whether each head is normalised by itself."""
        return self in (Layout.BATCH_POS_HEAD, Layout.BATCH_HEAD_POS)


@dataclass(frozen=True)
class NormSite:
    """One norm of a model.

    The norm normalises the last axis of its input, ``[*layout width]``, so whatever there
    is one of per token (mean, variance, scale) has the shape
    :func:`~normlens.models.layout.token_shape`, and
    :func:`~normlens.models.layout.by_position` turns that into ``[batch pos]``, or
    ``[batch pos head]`` where ``layout.per_head``.

    Attributes:
        layer: block index from 0, None outside blocks.
        role: where it sits.
        order: rank in order of execution, from 0.
        path: module path in the HF model; opaque outside hooks and edits.
        feeds: module paths of the linears that read its output.
        spec: what it computes.
        layout: the axes of its input before the last.
        heads: how many vectors it normalises per token: 1, or the number of query or
            key-value heads where it sees each head by itself. A norm over the whole
            projection (OLMo 2) has 1.
        on_stream: whether its output becomes the residual stream (post-LN, norms on the
            embeddings) instead of being read by a branch alone or added to the stream.
    """

    layer: int | None
    role: Role
    order: int
    path: str
    feeds: tuple[str, ...]
    spec: NormSpec
    layout: Layout = Layout.BATCH_POS
    heads: int = 1
    on_stream: bool = False

    @property
    def label(self) -> str:
        """Short stable name for tables and axes: ``3.pre_attn``, ``final``."""
        return self.role.value if self.layer is None else f"{self.layer}.{self.role.value}"


@dataclass(frozen=True)
class SiteCheck:
    """Verification of a site: its output recomputed from its spec on a sample.

    ``residual = max|y_module - y_spec| / max|y_module|``, dimensionless.
    """

    label: str
    residual: float
    tolerance: float
    passed: bool


@dataclass(frozen=True)
class Identity:
    """What was opened; enough to tell two models apart.

    ``weights_sha256`` covers names, dtypes, shapes and bytes of every parameter and buffer
    as opened.
    """

    name: str
    source: str
    weights_sha256: str
    config_sha256: str
    revision: str | None = None
    licence: str | None = None
    quantised_from: str | None = None


@dataclass(frozen=True)
class Lineage:
    """The model this one was fine-tuned from, as declared; ``compare`` verifies it."""

    ancestor: str | None = None
    ancestor_sha256: str | None = None


@dataclass(frozen=True)
class Placement:
    """Where the weights are and in which dtype they are analysed."""

    device: str
    dtype: str


@dataclass(frozen=True)
class Lens:
    """An opened model: the HF model, its tokenizer and what inspection found.

    ``tokenizer`` is None where the model was opened without one on purpose. ``sites`` and
    ``verification`` run in parallel, in order of execution.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    sites: tuple[NormSite, ...]
    verification: tuple[SiteCheck, ...]
    identity: Identity
    lineage: Lineage
    edits: tuple[str, ...]
    placement: Placement

    def module(self, site: NormSite) -> nn.Module:
        """The module object of a site."""
        return self.model.get_submodule(site.path)
