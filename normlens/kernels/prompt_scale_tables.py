"""From the State of ``prompt-scale`` to its tables, headline numbers and checks."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import torch

from normlens.capture.protocol import Context, Finding
from normlens.capture.state import State
from normlens.kernels.residual_roles import ON_RESIDUAL
from normlens.kernels.residual_summary import final_site
from normlens.kernels.scale_summary import known_sites, recomputed_check
from normlens.kernels.site_columns import site_columns
from normlens.kernels.token_scale import constant_scale
from normlens.kernels.token_strings import token_string
from normlens.models.lens import Lens, NormSite
from normlens.models.tokenizers import tokenizer_of
from normlens.results import Check, Headline
from normlens.tolerances import for_dtype


def scale_of_site(site: NormSite) -> str:
    """Name of the statistic with a site's scales ``[pos head]``."""
    return f"scale.{site.label}"


def input_norm_of(site: NormSite) -> str:
    """Name of the statistic with the norms of its inputs ``[pos head]``."""
    return f"input_norm.{site.label}"


def summarise(state: State, context: Context) -> Finding:
    """Tables, headline numbers, checks and warnings."""
    lens = context.lens
    tokenizer = tokenizer_of(lens)
    tokens = [token_string(tokenizer, token) for token in state.tensors["ids"].tolist()]
    tables = {
        "scale": _scale_rows(state, lens, tokens),
        "residual": _residual_rows(state, tokens),
    }
    return Finding(tables, _headline(state, lens), _checks(state, lens), _warnings(tables, lens))


def _scale_rows(state: State, lens: Lens, tokens: list[str]) -> pd.DataFrame:
    columns: dict[str, list[np.ndarray]] = {}
    for site in lens.sites:
        for name, values in _site_columns(state, site, tokens).items():
            columns.setdefault(name, []).append(values)
    frame = pd.DataFrame({name: np.concatenate(parts) for name, parts in columns.items()})
    return frame.astype({"layer": "Int64", "head": "Int64"})


def _site_columns(state: State, site: NormSite, tokens: list[str]) -> dict[str, np.ndarray]:
    """The columns of one site, a row per token and vector; missing integers are None."""
    norms = state.tensors[input_norm_of(site)]
    count, heads = norms.shape
    known = site.spec.kind.has_scale
    absent = torch.full_like(norms, math.nan)
    scale = (state.tensors[scale_of_site(site)] if known else absent).flatten().numpy()
    constants = constant_scale(site.spec, count)
    constant = (absent[:, 0] if constants is None else constants).numpy()
    finite = np.isfinite(scale)
    position = np.repeat(np.arange(count, dtype=np.int32), heads)
    head = np.tile(np.arange(heads), count).astype(object)
    shared = {name: np.full(len(position), v, object) for name, v in site_columns(site).items()}
    return {
        **shared,
        "order": np.full(len(position), site.order),
        "position": position,
        "token": np.array(tokens, dtype=object)[position],
        "head": head if site.layout.per_head else np.full(len(position), None),
        "applied": np.full(len(position), site.spec.kind.has_live_scale),
        "scale": np.where(finite, scale, math.nan),
        "input_norm": norms.flatten().numpy(),
        "applied_scale": constant[position],
        "status": np.where(finite, "ok", "overflow" if known else "not_applicable").astype(object),
    }


def _residual_rows(state: State, tokens: list[str]) -> pd.DataFrame:
    norms = state.tensors["residual"].numpy()
    count, points = norms.shape
    finite = np.isfinite(norms).flatten()
    return pd.DataFrame(
        {
            "point": np.tile(np.arange(points, dtype=np.int32), count),
            "position": np.repeat(np.arange(count, dtype=np.int32), points),
            "token": [token for token in tokens for _ in range(points)],
            "norm": np.where(finite, norms.flatten(), math.nan),
            "status": np.where(finite, "ok", "overflow"),
        }
    )


def _headline(state: State, lens: Lens) -> tuple[Headline, ...]:
    """Over sites on the residual stream; position 0 is apart from all others."""
    sites = [site for site in known_sites(lens) if site.role in ON_RESIDUAL]
    scales = {site: state.tensors[scale_of_site(site)][:, 0] for site in sites}
    rest = len(state.tensors["ids"]) - 1
    ratios = [float(s[0] / s[1:].quantile(0.5)) for s in scales.values()]
    live = [s[1:] for site, s in scales.items() if site.spec.kind.has_live_scale]
    free = [s[1:] for site, s in scales.items() if not site.spec.kind.has_live_scale]
    before, *_, after = state.tensors["residual"][1:].unbind(1)
    growth = float((after.log() - before.log()).mean().exp())
    middle = "median over norms of the residual stream"
    first = f"first token's scale over the median of the others', {middle}"
    return (
        _median("first_token_ratio", ratios, first, rest),
        _largest("first_token_ratio_largest", ratios, "largest of these ratios", rest),
        _median("spread", _spreads(live), f"sd/mean of live scales over tokens, {middle}", rest),
        _median("would_be_spread", _spreads(free), f"the same of scale-free norms, {middle}", rest),
        Headline(
            "growth", growth, "1",
            "norm of the last residual over that before block 0, typical token after the first",
            rest,
        ),
    )  # fmt: skip


def _spreads(scales: list[torch.Tensor]) -> list[float]:
    return [float(s.std(correction=0) / s.mean()) for s in scales]


def _median(name: str, values: list[float], doc: str, n: int) -> Headline:
    known = [value for value in values if math.isfinite(value)]
    return Headline(name, float(np.median(known)) if known else math.nan, "1", doc, _n(known, n))


def _largest(name: str, values: list[float], doc: str, n: int) -> Headline:
    known = [value for value in values if math.isfinite(value)]
    return Headline(name, max(known, default=math.nan), "1", doc, _n(known, n))


def _n(known: list[float], n: int) -> int:
    return n if known else 0


def _checks(state: State, lens: Lens) -> tuple[Check, ...]:
    found = [recomputed_check(lens)]
    site = final_site(lens)
    if site is not None:
        read = state.tensors[input_norm_of(site)][:, 0]
        apart = ((state.tensors["residual"][:, -1] - read).abs() / read).nan_to_num(0.0)
        tolerance = for_dtype("site_residual", lens.placement.dtype)
        value = float(apart.max())
        doc = (
            "relative difference between the norm after the last block and of the final norm's "
            "input"
        )
        name = "last_point_is_read_by_final_norm"
        found.append(Check(name, value, tolerance, value <= tolerance, doc))
    return tuple(found)


def _warnings(tables: dict[str, pd.DataFrame], lens: Lens) -> tuple[str, ...]:
    lost = sum(int((table["status"] == "overflow").sum()) for table in tables.values())
    if not lost:
        return ()
    return (
        f"{lens.identity.name}: {lost} values are not finite in {lens.placement.dtype} and left "
        "empty; open the model in float32",
    )
