"""Where norms stand in a block, and how a branch is added to the stream: rows of data.

A branch is attention or MLP. With ``N`` a norm and ``f`` the body, every placement is

    x -> exit( combine( entry(x), post( f( pre( entry(x) ) ) ) ) )

where ``entry``, ``pre``, ``post`` and ``exit`` are norms or nothing. ``combine(x, y)`` is
``alpha x + y``, or nGPT's interpolation. Inside the body norms may follow the projections or
precede the last one.

Where a row deviates from its paper:

* hybrid: the norm of v spans all heads, in the paper each head by itself; the variant whose
  first block has another layout (HybridNorm*) is left out.
* sdd: the formula for every linear, and nothing else. The authors' models add a norm on the
  stream before each branch, and normalise the mixed values in place of v.
* ngpt: the norms of q and k have a gain each where ``qk_norm`` gives one, shared by all heads
  and applied before rotary positions; in the authors' code one for q and k, by head, after.
  Learned scales of an ungated MLP follow those of a gate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class BranchNorms:
    """Which norms a branch has.

    Attributes:
        entry: on the stream, before the branch reads it; the stream continues normalised.
        pre: on what the branch reads alone.
        inner: before the last linear of the body (attention's o, the MLP's down).
        projections: after the first linears of the body (v in attention, up and gate in
            the MLP); for q and k see ``Placement.qk``.
        post: on the branch's output, before it is added.
        exit: on the stream, after the branch was added.
    """

    entry: bool = False
    pre: bool = False
    inner: bool = False
    projections: bool = False
    post: bool = False
    exit: bool = False


@dataclass(frozen=True)
class Placement:
    """One scheme.

    Attributes:
        name: as in a config.
        title: as in the literature.
        formula: of one block.
        source: paper and equation or section.
        attention, mlp: norms of the two branches.
        qk: whether q and k are normalised, each head by itself, with the norm of the others
            unless the config gives another.
        final: whether a norm stands before the unembedding.
        embedding: whether a norm stands on the embeddings.
        deep: whether the stream is multiplied by ``(2 layers) ** (1/4)`` before it is added to.
        depth_scaled: whether gains of the post norms start ``1 / sqrt(layers)`` as large.
        hyperspherical: nGPT: the stream moves towards the branch by a learned rate, hidden
            units and logits have learned scales, and every weight vector has unit length.
            Meant for norms of kind l2_norm, and ``attention_scale`` of ``sqrt(d_head)``.
    """

    name: str
    title: str
    formula: str
    source: str
    attention: BranchNorms
    mlp: BranchNorms
    qk: bool = False
    final: bool = True
    embedding: bool = False
    deep: bool = False
    depth_scaled: bool = False
    hyperspherical: bool = False


_PRE = BranchNorms(pre=True)
_EXIT = BranchNorms(exit=True)
_SANDWICH = BranchNorms(pre=True, post=True)

_ROWS = (
    Placement(
        name="pre",
        title="Pre-LN",
        formula="x + f(N(x))",
        source="2002.04745, section 3",
        attention=_PRE,
        mlp=_PRE,
    ),
    Placement(
        name="post",
        title="Post-LN",
        formula="N(x + f(x))",
        source="1706.03762, section 3.1",
        attention=_EXIT,
        mlp=_EXIT,
        final=False,
    ),
    Placement(
        name="sandwich",
        title="Sandwich-LN",
        formula="x + N(f(N(x)))",
        source="2105.13290, section 2.4",
        attention=_SANDWICH,
        mlp=_SANDWICH,
    ),
    Placement(
        name="peri",
        title="Peri-LN",
        formula="x + N(f(N(x))), and a norm on the embeddings",
        source="2502.02732, section 3",
        attention=_SANDWICH,
        mlp=_SANDWICH,
        embedding=True,
    ),
    Placement(
        name="hybrid",
        title="HybridNorm",
        formula="y = x + attention with N(q), N(k), N(v); then N(y) + f(N(y))",
        source="2503.04598, section 3",
        attention=BranchNorms(projections=True),
        mlp=BranchNorms(entry=True),
        qk=True,
    ),
    Placement(
        name="deepnorm",
        title="DeepNorm",
        formula="N(alpha x + f(x)), alpha = (2 layers)^(1/4)",
        source="2203.00555, figure 2 (decoder only)",
        attention=_EXIT,
        mlp=_EXIT,
        final=False,
        deep=True,
    ),
    Placement(
        name="depth_scaled_sandwich",
        title="Depth-scaled sandwich norm",
        formula="x + N(f(N(x))), gains of the outer norm from 1 / sqrt(layers)",
        source="2504.07866, section 2",
        attention=_SANDWICH,
        mlp=_SANDWICH,
        depth_scaled=True,
    ),
    Placement(
        name="every_linear",
        title="A norm before every linear",
        formula="x + W N(g(V N(x)))",
        source="2505.08823, section 3",
        attention=BranchNorms(pre=True, inner=True),
        mlp=BranchNorms(pre=True, inner=True),
    ),
    Placement(
        name="sdd",
        title="Scale-distribution decoupling",
        formula="every linear W x becomes gamma N(W x)",
        source="2502.15499, eq. 1",
        attention=BranchNorms(projections=True, post=True),
        mlp=BranchNorms(projections=True, post=True),
        qk=True,
    ),
    Placement(
        name="ngpt",
        title="nGPT",
        formula="N(x + alpha (N(f(x)) - x))",
        source="2410.01131, section 2",
        attention=BranchNorms(post=True, exit=True),
        mlp=BranchNorms(post=True, exit=True),
        qk=True,
        final=False,
        embedding=True,
        hyperspherical=True,
    ),
)

PLACEMENTS: Mapping[str, Placement] = MappingProxyType({row.name: row for row in _ROWS})
"""Every placement, by name."""
