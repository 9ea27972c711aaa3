"""Elementwise norms in the place of live ones, from the curves of ``curves``.

1. Of every norm to be replaced the fit ``s f(alpha x)`` of its curve, tokens after the first.
2. DyT ``gamma' tanh(alpha x) + beta`` with ``gamma' = s gamma``; ELN
   ``gamma' a x / sqrt(1 + (a x)**2 / d) + beta``, which is the same function as
   ``s gamma x / sqrt(beta_fit + x**2)`` for ``a = sqrt(d / beta_fit)`` and
   ``gamma' = s gamma / sqrt(d)``. A norm without gain gets one; the bias stays.
3. Not exact: per variant the change of the cross-entropy and ``KL(intact || replaced)`` over
   the targets of a text, every norm replaced alone and all of them at once; intervals by
   bootstrap over documents. Fit on one text and measure on another.

Sources: DyT 2503.10622 eq. 1; Stollenwerk 2503.21708 (ELN).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor, nn

from normlens.capture.batches import batches
from normlens.capture.statistics import REPLICATES, interval, poisson_weights
from normlens.capture.tree import plain_tree, run_model
from normlens.errors import NotApplicable, UsageError
from normlens.hooks import Hook, hooked
from normlens.kernels.predictions import Targets, divergence, reference
from normlens.models.copying import structural_copy
from normlens.models.edits.edit import Edited
from normlens.models.edits.install import install_norm, one_slope_and_bias
from normlens.models.lens import Lens, NormSite
from normlens.norms.spec import NormKind, NormSpec
from normlens.results import Result
from normlens.text.sequences import Batch, Sequences

Elementwise = Literal[NormKind.DYT, NormKind.ELN]


@dataclass(frozen=True)
class FittedNorm:
    """What replaces one norm.

    Attributes:
        label: of its site.
        spec: of the elementwise norm; it has a gain, and a bias where the old one has.
        gain: what the old gain is multiplied by.
    """

    label: str
    spec: NormSpec
    gain: float


def fitted_specs(
    result: Result, lens: Lens, kind: Elementwise, sites: Sequence[NormSite] | None = None
) -> dict[str, FittedNorm]:
    """The elementwise norm nearest to each norm with a live scale, by its label.

    Args:
        result: of ``curves`` on this model.
        lens: the model.
        kind: DYT or ELN.
        sites: the norms to replace; all with a live scale when None.

    Raises:
        UsageError: the result is not of ``curves`` or not of this model.
        NotApplicable: no norm has a live scale, or one has no fit.
    """
    name = lens.identity.name
    if result.analysis != "curves" or name not in result.models:
        raise UsageError(f"needs a result of curves on {name}; run curves on it first")
    if result.provenance[name]["weights_sha256"] != lens.identity.weights_sha256:
        raise UsageError(f"the curves of {name} are of other weights; run curves on this model")
    wanted = [
        site for site in (lens.sites if sites is None else sites) if site.spec.kind.has_live_scale
    ]
    if not wanted:
        raise NotApplicable(f"none of these norms of {name} has a live scale to replace")
    table = result.tables["fits"]
    chosen = (table["model"] == name) & (table["group"] == "rest") & (table["n"] > 0)
    fits = table[chosen].set_index("site")
    missing = [site.label for site in wanted if site.label not in fits.index]
    if missing:
        raise NotApplicable(f"norm {missing[0]} of {name} has no fit: no tokens after the first")
    return {site.label: _fitted(site, fits.loc[[site.label]].iloc[0], kind) for site in wanted}


def _fitted(site: NormSite, row: pd.Series, kind: Elementwise) -> FittedNorm:
    old = site.spec
    if kind is NormKind.DYT:
        alpha, gain = float(row["tanh_alpha"]), float(row["tanh_s"])
    else:
        root = math.sqrt(old.width)
        alpha, gain = root / math.sqrt(float(row["eln_beta"])), float(row["eln_s"]) / root
    spec = NormSpec(kind, old.width, gain=True, bias=old.bias, alpha=alpha, factor=old.factor)
    return FittedNorm(site.label, spec, gain)


@dataclass(frozen=True)
class ReplaceFitted:
    """The edit that puts fitted norms in place; see :func:`normlens.models.edits.convert`."""

    norms: tuple[FittedNorm, ...]

    @property
    def name(self) -> str:
        """Every label with the kind and the constants of what replaces it."""
        shown = (
            f"{norm.label}:{norm.spec.kind.value}({norm.spec.alpha!r},{norm.gain!r})"
            for norm in self.norms
        )
        return "fitted=" + ",".join(shown)

    @property
    def tolerance(self) -> None:
        """None: the edit is not exact."""
        return None

    def __call__(self, lens: Lens) -> Edited:
        """The model with the fitted norms.

        Raises:
            UsageError: no norm has that label.
            NotApplicable: every head of a norm has a gain of its own.
        """
        sites = {site.label: site for site in lens.sites}
        unknown = [norm.label for norm in self.norms if norm.label not in sites]
        if unknown:
            raise UsageError(f"{lens.identity.name} has no norm {unknown[0]}")
        model = structural_copy(lens.model)
        for norm in self.norms:
            site = sites[norm.label]
            slope, beta = one_slope_and_bias(lens, site)
            install_norm(model, site.path, norm.spec, slope * norm.gain, beta)
        return Edited(model)


@torch.inference_mode()
def measure_replacement(
    lens: Lens,
    norms: Mapping[str, FittedNorm],
    sequences: Sequences,
    *,
    batch_size: int = 16,
    seed: int = 0,
) -> pd.DataFrame:
    """What fitted norms cost: each alone, then all of them (row ``all``).

    Args:
        lens: the intact model.
        norms: from :func:`fitted_specs`.
        sequences: a text, best another one than that of the fits.
        batch_size: sequences per forward pass.
        seed: of the bootstrap.

    Returns:
        Columns ``replaced``, ``n`` (targets), ``loss``, ``delta_loss``, ``delta_low``,
        ``delta_high`` and ``kl``, in nats/token; NaN with n = 0. A target with a logit that
        is not finite in a variant is left out of its row.
    """
    edited = ReplaceFitted(tuple(norms.values()))(lens).model
    swaps = {site: edited.get_submodule(site.path) for site in lens.sites if site.label in norms}
    variants = [*({site: module} for site, module in swaps.items()), swaps]
    weights = poisson_weights(sequences.document_ids, seed)
    sums = torch.zeros(len(variants), 4, dtype=torch.float64)
    paired = torch.zeros(len(variants), 2, REPLICATES, dtype=torch.float64)
    device = lens.placement.device
    for batch in batches(
        sequences, 0, len(sequences), size=batch_size, device=device, weights=weights
    ):
        targets = Targets.of(batch)
        intact = reference(_logits(lens, batch, {}), targets)
        for index, variant in enumerate(variants):
            loss, kl = divergence(intact, _logits(lens, batch, variant), targets)
            delta = loss - intact.cross_entropy
            values = torch.stack([torch.ones_like(loss), loss, delta, kl])
            counted = torch.where(values.isfinite().all(0), values, 0.0)
            by_sequence = targets.sum_per_sequence(counted, len(batch.index))
            sums[index] += by_sequence.sum(-1)
            paired[index] += by_sequence[[0, 2]] @ batch.weights.T
    labels = [*(site.label for site in swaps), "all"]
    return pd.DataFrame([_row(*row) for row in zip(labels, sums, paired, strict=True)])


def _row(label: str, sums: Tensor, paired: Float[Tensor, "2 replicate"]) -> dict[str, object]:
    n = int(sums[0])
    loss, delta, kl = (sums[1:] / sums[0]).tolist()
    low, high = interval(paired[1] / paired[0]) if n else (math.nan, math.nan)
    return {
        "replaced": label,
        "n": n,
        "loss": loss,
        "delta_loss": delta,
        "delta_low": low,
        "delta_high": high,
        "kl": kl,
    }


def _logits(
    lens: Lens, batch: Batch, swaps: Mapping[NormSite, nn.Module]
) -> Float[Tensor, "batch pos vocab"]:
    hooks: list[Hook] = []
    for site, module in swaps.items():
        swap, old = _Swap(module), lens.module(site)
        hooks.append(Hook(old, "input", swap.read, site.label))
        hooks.append(Hook(old, "output", swap.replace, site.label))
    with hooked(lens.model, hooks):
        logits = run_model(plain_tree(lens), batch, logits=True)
    assert logits is not None, "logits were asked for"
    return logits


class _Swap:
    """Calls another module on a norm's input, in the place of its output."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._x = torch.empty(0)

    def read(self, x: Tensor) -> None:
        self._x = x

    def replace(self, _y: Tensor) -> Tensor:
        return self._module(self._x)
