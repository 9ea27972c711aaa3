"""Where a number comes from: the key that decides it, and the record that explains it."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from normlens import __version__
from normlens.catalog import Analysis
from normlens.models.lens import Lens
from normlens.norms.spec import NormKind
from normlens.text.sequences import Sequences


def computation_key(
    analysis: Analysis,
    lens: Lens,
    sequences: Sequences,
    parameters: Mapping[str, Any],
    seed: int,
    reference: Lens | None = None,
) -> dict[str, Any]:
    """Everything that decides an analysis's numbers; its digest names shards and results."""
    key = {
        "analysis": analysis.name,
        "analysis_version": analysis.version,
        "parameters": dict(parameters),
        "corpus": sequences.sha256,
        "tokenizer": sequences.tokenizer_sha256,
        **_what_computes(lens),
        "seed": seed,
        "versions": versions(),
    }
    return key if reference is None else {**key, "reference": _what_computes(reference)}


def _what_computes(lens: Lens) -> dict[str, Any]:
    return {
        "weights": lens.identity.weights_sha256,
        "config": lens.identity.config_sha256,
        "norms": [[site.label, asdict(site.spec)] for site in lens.sites],
        "edits": list(lens.edits),
        "device": lens.placement.device,
        "dtype": lens.placement.dtype,
        "attention": lens.model.config._attn_implementation,
    }


def versions() -> dict[str, str]:
    """Versions of what computes."""
    names = ("torch", "transformers", "transformer-lens", "numpy")
    return {"normlens": __version__, **{name: version(name) for name in names}}


def provenance(
    lens: Lens,
    sequences: Sequences,
    key: Mapping[str, Any],
    batch_size: int,
    command: str,
) -> dict[str, Any]:
    """The record shown with a result; JSON-serialisable."""
    identity = lens.identity
    return {
        "name": identity.name,
        "source": identity.source,
        "revision": identity.revision,
        "licence": identity.licence,
        "quantised_from": identity.quantised_from,
        "weights_sha256": identity.weights_sha256,
        "config_sha256": identity.config_sha256,
        "kind": scale_kind(lens),
        "ancestor": lens.lineage.ancestor,
        "ancestor_sha256": lens.lineage.ancestor_sha256,
        "edits": list(lens.edits),
        "sites": _sites(lens),
        "tokenizer_sha256": sequences.tokenizer_sha256,
        "corpus": sequences.name,
        "corpus_sha256": sequences.sha256,
        "bos": sequences.bos,
        "sequences": len(sequences),
        "tokens": sequences.tokens,
        "documents": len(sequences.document_ids),
        "context": int(sequences.ids.shape[1]),
        "dtype": lens.placement.dtype,
        "device": lens.placement.device,
        "attention": key["attention"],
        "analysis_version": key["analysis_version"],
        "parameters": dict(key["parameters"]),
        "seed": key["seed"],
        "batch_size": batch_size,
        "versions": {**key["versions"], "python": platform.python_version()},
        "command": command,
    }


def scale_kind(lens: Lens) -> str:
    """What the norms of a model divide tokens by, over all sites.

    ``live``: a statistic of the token; ``scale_free``: constants; ``elementwise``: nothing,
    each element is bent by itself; ``mixed``; ``opaque`` if any is unknown.
    """
    kinds = {site.spec.kind for site in lens.sites}
    if NormKind.OPAQUE in kinds:
        return "opaque"
    found = {_divides_by(kind) for kind in kinds}
    return found.pop() if len(found) == 1 else "mixed" if found else "scale_free"


def _divides_by(kind: NormKind) -> str:
    return "live" if kind.has_live_scale else "scale_free" if kind.linear else "elementwise"


def _sites(lens: Lens) -> list[dict[str, Any]]:
    checks = {check.label: check for check in lens.verification}
    rows = []
    for site in lens.sites:
        check = checks.get(site.label)
        rows.append(
            {
                "label": site.label,
                "kind": site.spec.kind.value,
                "eps": site.spec.eps,
                "fixed_scale": site.spec.fixed_scale,
                "eps_encoded": site.spec.eps_encoded,
                "residual": check.residual if check else None,
                "tolerance": check.tolerance if check else None,
                "verified": bool(check and check.passed),
            }
        )
    return rows
