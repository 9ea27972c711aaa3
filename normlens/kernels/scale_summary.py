"""From the statistics of ``scale`` to its tables, headline numbers and checks."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from normlens.capture.protocol import Context, Finding
from normlens.capture.state import State
from normlens.capture.statistics import interval, log_quantile
from normlens.kernels.site_columns import site_columns
from normlens.kernels.token_scale import constant_scale
from normlens.models.lens import Lens, NormSite
from normlens.results import Check, Headline

GROUPS = ("first", "rest")
QUANTILES = {"q05": 0.05, "q50": 0.5, "q95": 0.95}


def known_sites(lens: Lens) -> tuple[NormSite, ...]:
    """Sites that have a scale: none is invented for OPAQUE ones, elementwise kinds have none."""
    return tuple(site for site in lens.sites if site.spec.kind.has_scale)


@dataclass(frozen=True)
class GroupSummary:
    """Statistics of one token group, one entry per known site; NaN where n is 0.

    ``replicate_mean`` and ``replicate_spread`` are those of the bootstrap replicates.
    """

    n: Int[Tensor, " site"]
    overflow: Int[Tensor, " site"]
    mean: Float[Tensor, " site"]
    sd: Float[Tensor, " site"]
    minimum: Float[Tensor, " site"]
    maximum: Float[Tensor, " site"]
    ones_share: Float[Tensor, " site"]
    histogram: Int[Tensor, "site bin"]
    replicate_mean: Float[Tensor, "replicate site"]
    replicate_spread: Float[Tensor, "replicate site"]

    @staticmethod
    def of(state: State, group: str) -> GroupSummary:
        """Read one group of the kernel's State."""
        n = state.tensors[f"n.{group}"]
        total, square, share = state.tensors[f"sums.{group}"]
        mean, sd = _mean_and_sd(n.double(), total, square)
        replicate_mean, replicate_sd = _mean_and_sd(*state.tensors[f"replicates.{group}"].unbind(1))
        return GroupSummary(
            n=n,
            overflow=state.tensors[f"overflow.{group}"],
            mean=mean,
            sd=sd,
            minimum=torch.where(n > 0, state.tensors[f"minimum.{group}"], math.nan),
            maximum=torch.where(n > 0, state.tensors[f"maximum.{group}"], math.nan),
            ones_share=share / n,
            histogram=state.tensors[f"histogram.{group}"],
            replicate_mean=replicate_mean,
            replicate_spread=replicate_sd / replicate_mean,
        )

    @property
    def spread(self) -> Float[Tensor, " site"]:
        """Coefficient of variation ``sd / mean``."""
        return self.sd / self.mean

    def columns(self, site: int) -> dict[str, object]:
        """The measures of one row of the table, and its status."""
        low, high = interval(self.replicate_spread[:, site])
        return {
            "n": int(self.n[site]),
            "mean": float(self.mean[site]),
            "sd": float(self.sd[site]),
            "spread": float(self.spread[site]),
            "spread_low": low,
            "spread_high": high,
            **{k: log_quantile(self.histogram[site], level) for k, level in QUANTILES.items()},
            "minimum": float(self.minimum[site]),
            "maximum": float(self.maximum[site]),
            "ones_share": float(self.ones_share[site]),
            "status": self._status(site),
        }

    def _status(self, site: int) -> str:
        if self.overflow[site] > 0:
            return "overflow"
        return "ok" if self.n[site] > 0 else "no_data"


def summarise(state: State, context: Context) -> Finding:
    """Tables, headline numbers, checks and warnings of ``scale``."""
    lens = context.lens
    groups = {group: GroupSummary.of(state, group) for group in GROUPS}
    tables = {"scale": _scale_table(lens, groups, context.sequences.ids.shape[1])}
    if context.parameters.per_token:
        tables["tokens"] = _token_table(state, lens)
    headline, replicates = _headline(lens, groups)
    return Finding(tables, headline, (recomputed_check(lens),), _warnings(lens, groups), replicates)


def _scale_table(lens: Lens, groups: dict[str, GroupSummary], positions: int) -> pd.DataFrame:
    index = {site: i for i, site in enumerate(known_sites(lens))}
    rows: list[dict[str, object]] = []
    for site in lens.sites:
        applied = _applied(site, positions)
        shared = {**site_columns(site), "applied": site.spec.kind.has_live_scale}
        for group, summary in groups.items():
            known = site in index
            measures = summary.columns(index[site]) if known else _unknown()
            constant = {"applied_scale": applied.get(group, math.nan)}
            rows.append({**shared, "group": group, **constant, **measures})
    return pd.DataFrame(rows)


def _applied(site: NormSite, positions: int) -> dict[str, float]:
    """The constant of a scale-free site by group, where it has one; a mean where it has several."""
    constants = constant_scale(site.spec, positions)
    if constants is None:
        return {}
    first, rest = constants[:1], constants[1:] if positions > 1 else constants
    alike = bool((rest == rest[0]).all())
    return {"first": float(first[0]), "rest": float(rest[0] if alike else rest.mean())}


def _unknown() -> dict[str, object]:
    names = ("mean", "sd", "spread", "spread_low", "spread_high", "minimum", "maximum")
    measures = dict.fromkeys((*names, *QUANTILES, "ones_share"), math.nan)
    return {"n": 0, **measures, "status": "not_applicable"}


def _token_table(state: State, lens: Lens) -> pd.DataFrame:
    sequence, position, site, vector, scale = state.tensors["tokens"].unbind(1)
    sites = known_sites(lens)
    per_head = torch.tensor([site.layout.per_head for site in sites])[site.long()]
    head = pd.Series(vector.long().numpy(), dtype="Int64").where(pd.Series(per_head.numpy()))
    return pd.DataFrame(
        {
            "sequence": sequence.long().numpy(),
            "position": position.long().numpy(),
            "site": [sites[i].label for i in site.long().tolist()],
            "head": head,
            "scale": scale.numpy(),
        }
    )


def _headline(
    lens: Lens, groups: dict[str, GroupSummary]
) -> tuple[tuple[Headline, ...], dict[str, Tensor]]:
    first, rest = groups["first"], groups["rest"]
    live = torch.tensor([site.spec.kind.has_live_scale for site in known_sites(lens)])
    per_token = torch.tensor([site.heads for site in known_sites(lens)])
    tokens = int((rest.n // per_token).max())
    ratio = first.mean / rest.mean
    replicate_ratio = first.replicate_mean / rest.replicate_mean
    replicates: dict[str, Tensor] = {}

    def median(name: str, doc: str, values: Tensor, boot: Tensor, chosen: Tensor) -> Headline:
        sites = int(chosen.sum())
        n = tokens if sites else 0
        if n == 0:
            return Headline(name, math.nan, "1", f"{doc}; there is none", 0)
        replicates[name] = boot[:, chosen].quantile(0.5, dim=1)
        low, high = interval(replicates[name])
        doc = f"{doc} ({sites}), first tokens apart"
        return Headline(name, float(values[chosen].quantile(0.5)), "1", doc, n, low, high)

    every = torch.ones_like(live)
    spread, boot = rest.spread, rest.replicate_spread
    doc = "norms with a live scale, of all norms whose kind is known"
    headline = (
        Headline("live_sites", float(live.sum()), "sites", doc, len(live)),
        median("spread", "median spread sd/mean of the live scales", spread, boot, live),
        median("would_be_spread", "median spread at the scale-free sites", spread, boot, ~live),
        median(
            "first_token_ratio",
            "mean scale of the first tokens over that of all others, median over sites",
            ratio, replicate_ratio, every,
        ),
        _largest_ratio(lens, ratio, replicate_ratio, tokens),
    )  # fmt: skip
    return headline, replicates


def _largest_ratio(lens: Lens, ratio: Tensor, replicates: Tensor, tokens: int) -> Headline:
    name = "first_token_ratio_largest"
    if tokens == 0:
        return Headline(name, math.nan, "1", "largest of these ratios; there is none", 0)
    site = int(ratio.argmax())
    low, high = interval(replicates[:, site])
    doc = f"largest of these ratios, at {known_sites(lens)[site].label}"
    return Headline(name, float(ratio[site]), "1", doc, tokens, low, high)


def recomputed_check(lens: Lens) -> Check:
    """That the norms whose scale is known compute what their spec says, from the opening."""
    known = {site.label for site in known_sites(lens)}
    shares = [c.residual / c.tolerance for c in lens.verification if c.label in known]
    worst = max(shares, default=math.nan)
    doc = (
        "largest residual of a norm's output recomputed from its kind, eps, gain and bias, as a "
        "share of its tolerance"
    )
    return Check("norms_recomputed", worst, 1.0, worst <= 1.0, doc)


def _warnings(lens: Lens, groups: dict[str, GroupSummary]) -> tuple[str, ...]:
    labels = [site.label for site in known_sites(lens)]
    lost = sum(summary.overflow for summary in groups.values())
    assert isinstance(lost, Tensor)
    where = [f"{label} ({k})" for label, k in zip(labels, lost.tolist(), strict=True) if k]
    if not where:
        return ()
    return (
        f"the scale of some tokens is not finite in {lens.placement.dtype} and left out: "
        f"{', '.join(where)}; open the model in float32",
    )


def _mean_and_sd(count: Tensor, total: Tensor, square: Tensor) -> tuple[Tensor, Tensor]:
    mean = total / count
    return mean, (square / count - mean.square()).clamp_min(0).sqrt()
