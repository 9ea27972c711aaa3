"""Freezing: a norm divides by a constant instead of a statistic of the token.

    y = centre(x) / s * gamma + beta

``s`` is a given number or was measured on text: one mean over all positions but the first
(``mean``), with the first position's own mean beside it (``apart``), or one mean per position
(``position``). Per head, ``s`` is the mean over heads too. Constants by position count the
tokens of one forward pass, so they are not for generation with a cache.

Not an exact edit. For the exact one, which replays the scales of a clean run token by token
as an intervention, see :mod:`normlens.kernels.replay`. Source: 2507.02559.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from normlens.errors import NotApplicable, UsageError
from normlens.hooks import Hook, hooked
from normlens.models.edits.conversion import convert
from normlens.models.edits.edit import Edited
from normlens.models.edits.selection import ALL, select_sites
from normlens.models.edits.swap import replaced
from normlens.models.layout import by_position
from normlens.models.lens import Layout, Lens, NormSite
from normlens.norms import NormKind, NormSpec, centre, scale_of
from normlens.text.sequences import Sequences

Measured = Literal["mean", "apart", "position"]
BATCH = 8


@dataclass(frozen=True)
class Freeze:
    """See :func:`freeze_scale`."""

    scale: float | Measured
    sites: str = ALL
    sequences: Sequences | None = field(default=None, repr=False)

    @property
    def tolerance(self) -> None:
        """None: not exact."""
        return None

    @property
    def name(self) -> str:
        """``freeze=SCALE@SITES``, with a digest of the text it was measured on."""
        text = "" if self.sequences is None else f":{self.sequences.sha256[:12]}"
        return f"freeze={self.scale}{text}@{self.sites}"

    def __call__(self, lens: Lens) -> Edited:
        """The model with frozen norms."""
        sites = select_sites(lens, self.sites)
        if self.sites == ALL:
            sites = tuple(site for site in sites if site.spec.kind.has_live_scale)
        if not sites:
            raise NotApplicable(f"no norm of {lens.identity.name} has a live scale to freeze")
        for site in sites:
            _require_live(lens, site, self.scale)
        constants = self._constants(lens, sites)
        return Edited(replaced(lens, {site: _frozen(site.spec, constants[site]) for site in sites}))

    def _constants(
        self, lens: Lens, sites: Sequence[NormSite]
    ) -> Mapping[NormSite, float | tuple[float, ...]]:
        if isinstance(self.scale, (int, float)):
            if not 0 < self.scale < float("inf"):
                raise UsageError(f"a scale is a positive number, not {self.scale}")
            return dict.fromkeys(sites, float(self.scale))
        if self.sequences is None:
            raise UsageError("a scale that is measured needs text to measure it on")
        return {
            site: _constant(sums, counts, self.scale)
            for site, (sums, counts) in scale_sums(lens, sites, self.sequences).items()
        }


def freeze_scale(
    lens: Lens,
    scale: float | Measured,
    sites: str = ALL,
    *,
    sequences: Sequences | None = None,
) -> Lens:
    """A lens whose chosen norms divide by a constant.

    Args:
        lens: left as it is.
        scale: the constant in residual units, or how it is measured.
        sites: as :func:`~normlens.models.edits.selection.select_sites` reads them; ``all``
            is every norm with a live scale.
        sequences: what it is measured on.

    Raises:
        NotApplicable: a norm has no live scale, or per-position scales were asked for one
            that does not see positions in their order (OPT's packed MLP norm, norms per head).
        UsageError: a scale that is not positive, or measured without text.
    """
    return convert(lens, Freeze(scale, sites, sequences)).lens


def scale_sums(
    lens: Lens, sites: Sequence[NormSite], sequences: Sequences
) -> dict[NormSite, tuple[Float[Tensor, " pos"], Int[Tensor, " pos"]]]:
    """Sum of each norm's live scale at every position, and how many tokens are in it."""
    positions, device = sequences.ids.shape[1], lens.model.device
    sums = {site: torch.zeros(positions, dtype=torch.float64) for site in sites}
    counts = torch.zeros(positions, dtype=torch.int64)
    for ids, mask in _batches(sequences):
        readers = {site: _Scale(site, *ids.shape) for site in sites}
        hooks = [Hook(lens.module(s), "input", read, s.label) for s, read in readers.items()]
        seen = mask.long().to(device)
        with torch.inference_mode(), hooked(lens.model, hooks):
            lens.model(input_ids=ids.to(device), attention_mask=seen, use_cache=False)
        counts += mask.sum(0)
        for site, read in readers.items():
            sums[site] += torch.where(mask, read.value, 0.0).sum(0)
    return {site: (total, counts) for site, total in sums.items()}


class _Scale:
    """Keeps the scale of one norm per token, float64 on the CPU."""

    def __init__(self, site: NormSite, batch: int, pos: int) -> None:
        self._site, self._shape = site, (batch, pos)
        self.value = torch.empty(0)

    def __call__(self, x: Tensor) -> None:
        scale = scale_of(self._site.spec, centre(self._site.spec, x.double()))[..., 0]
        seen = by_position(self._site, scale, *self._shape).cpu()
        self.value = seen.mean(-1) if seen.ndim == 3 else seen


def _batches(sequences: Sequences) -> Iterator[tuple[Int[Tensor, "batch pos"], Tensor]]:
    for start in range(0, len(sequences), BATCH):
        ids = sequences.ids[start : start + BATCH]
        lengths = sequences.lengths[start : start + BATCH]
        yield ids, torch.arange(ids.shape[1]) < lengths[:, None]


def _constant(
    sums: Float[Tensor, " pos"], counts: Int[Tensor, " pos"], how: Measured
) -> float | tuple[float, ...]:
    if not counts[1:].any():
        raise UsageError("no sequence has a second token, so there is no scale to measure")
    rest = (sums[1:].sum() / counts[1:].sum()).item()
    first = (sums[0] / counts[0]).item()
    match how:
        case "mean":
            return rest
        case "apart":
            return first, rest
        case "position":
            return tuple((sums / counts)[counts > 0].tolist())


def _frozen(spec: NormSpec, constant: float | tuple[float, ...]) -> NormSpec:
    return NormSpec(
        NormKind.FIXED_SCALE,
        spec.width,
        centred=spec.centred,
        gain=spec.gain,
        bias=spec.bias,
        factor=spec.factor,
        fixed_scale=constant if isinstance(constant, float) else None,
        position_scales=constant if isinstance(constant, tuple) else None,
    )


def _require_live(lens: Lens, site: NormSite, scale: float | Measured) -> None:
    name = lens.identity.name
    if not site.spec.kind.has_live_scale:
        raise NotApplicable(
            f"norm {site.label} of {name} is {site.spec.kind.value}: it has no live scale to freeze"
        )
    if scale in ("apart", "position") and site.layout is not Layout.BATCH_POS:
        raise NotApplicable(
            f"norm {site.label} of {name} sees its input as '{site.layout.value} width', where a "
            "scale per position has no place; freeze it to one constant"
        )
