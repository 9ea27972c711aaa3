"""What opening found out about a model, as the explorer shows it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from normlens.models.lens import Lens


@dataclass(frozen=True)
class ModelCheck:
    """An opened model in numbers and words.

    Attributes:
        name: as opened.
        facts: label and value, in order.
        sites: one row per norm, :func:`normlens.models.inspect.site_table`.
        verified: whether every norm reproduced its output from its spec.
        weights_sha256: digest of the weights as opened.
        parameters: their number.
        memory: bytes of parameters and buffers.
        architecture: class of the model.
        edits: labels of the edits that opening applied.
        kind: what its norms divide by: ``live``, ``scale_free``, ``elementwise``, ``mixed``
            or ``opaque``.
    """

    name: str
    facts: tuple[tuple[str, str], ...]
    sites: pd.DataFrame
    verified: bool
    weights_sha256: str
    parameters: int
    memory: int
    architecture: str
    edits: tuple[str, ...]
    kind: str


KINDS = {
    "live": "every norm divides by a statistic of the token",
    "scale_free": "no norm divides by a statistic of the token",
    "elementwise": "norms bend each element by itself",
    "mixed": "norms of several kinds",
    "opaque": "a norm does not match any known kind",
}


def check_lens(lens: Lens) -> ModelCheck:
    """Describe an opened model."""
    from normlens.models.context import UNLIMITED, context_length
    from normlens.models.inspect import site_table
    from normlens.provenance import scale_kind

    identity, placement = lens.identity, lens.placement
    passed = sum(check.passed for check in lens.verification)
    kind = scale_kind(lens)
    context = context_length(lens)
    facts = {
        "source": identity.source,
        "architecture": type(lens.model).__name__,
        "norms": f"{len(lens.sites)}: {KINDS[kind]}",
        "verified": f"{passed} of {len(lens.verification)} norms recomputed from their spec",
        "parameters": f"{lens.model.num_parameters():,}",
        "memory": f"{memory_bytes(lens) / 1e6:,.1f} MB",
        "dtype and device": f"{placement.dtype} on {placement.device}",
        "context": "unlimited" if context == UNLIMITED else f"{context:,} tokens",
        "weights SHA-256": identity.weights_sha256,
        "licence": identity.licence or "unknown",
        "revision": identity.revision or "",
        "fine-tuned from": lens.lineage.ancestor or "",
        "dequantised from": identity.quantised_from or "",
        "edits": ", ".join(lens.edits),
    }
    return ModelCheck(
        name=identity.name,
        facts=tuple((label, value) for label, value in facts.items() if value),
        sites=site_table(lens),
        verified=passed == len(lens.verification),
        weights_sha256=identity.weights_sha256,
        parameters=lens.model.num_parameters(),
        memory=memory_bytes(lens),
        architecture=type(lens.model).__name__,
        edits=lens.edits,
        kind=kind,
    )


def memory_bytes(lens: Lens) -> int:
    """Bytes of all parameters and buffers; tied ones count once."""
    tensors = {id(t): t for t in chain(lens.model.parameters(), lens.model.buffers())}
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
