"""Which norms have to do with the residual stream, by their roles."""

from __future__ import annotations

from normlens.models.lens import Role

READERS = (Role.PRE_ATTN, Role.PRE_MLP, Role.FINAL)
"""Norms that stand between the stream and what reads it."""

ON_RESIDUAL = (
    *READERS,
    Role.POST_ATTN,
    Role.POST_MLP,
    Role.EXIT_ATTN,
    Role.EXIT_MLP,
)
"""Norms in blocks, or before the unembedding, of vectors of the stream's width."""
