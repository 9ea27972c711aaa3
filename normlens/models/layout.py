"""Between the axes of a norm's input and ``[batch pos]`` or ``[batch pos head]``."""

from __future__ import annotations

from jaxtyping import Shaped
from torch import Tensor

from normlens.models.lens import Layout, NormSite


def token_shape(site: NormSite, batch: int, pos: int) -> tuple[int, ...]:
    """Shape of the site's input without its last axis, for ``batch`` rows of ``pos`` tokens."""
    return layout_shape(site.layout, site.heads, batch, pos)


def layout_shape(layout: Layout, heads: int, batch: int, pos: int) -> tuple[int, ...]:
    """:func:`token_shape` of a norm that is not a site yet."""
    match layout:
        case Layout.BATCH_POS:
            return batch, pos
        case Layout.PACKED:
            return (batch * pos,)
        case Layout.BATCH_POS_HEAD:
            return batch, pos, heads
        case Layout.BATCH_HEAD_POS:
            return batch, heads, pos


def by_position(
    site: NormSite, values: Shaped[Tensor, "..."], batch: int, pos: int
) -> Shaped[Tensor, "..."]:
    """Per-token values of a site with the axes in the order of every table.

    Args:
        site: where they were taken.
        values: ``[*leading *token_shape]``; any leading axes, such as mean and variance.
        batch: rows of the batch.
        pos: tokens of a row.

    Returns:
        ``[*leading batch pos]``, or ``[*leading batch pos head]`` where
        ``site.layout.per_head``; a view where possible.
    """
    axes = len(token_shape(site, batch, pos))
    leading = values.shape[: values.ndim - axes]
    if site.layout is Layout.PACKED:
        return values.reshape(*leading, batch, pos)
    return values.transpose(-1, -2) if site.layout is Layout.BATCH_HEAD_POS else values


def as_seen(site: NormSite, values: Shaped[Tensor, "batch pos *head"]) -> Shaped[Tensor, "..."]:
    """The inverse of :func:`by_position`: values per token with the axes the module sees.

    Values without a head axis get one of size 1 where the module sees heads.
    """
    if site.layout.per_head and values.ndim == 2:
        values = values[..., None]
    match site.layout:
        case Layout.PACKED:
            return values.flatten()
        case Layout.BATCH_HEAD_POS:
            return values.transpose(-1, -2)
        case _:
            return values
