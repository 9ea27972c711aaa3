"""Opening a model from wherever it is; all ways end in verification."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from normlens.errors import ModelNotFound, UsageError
from normlens.models.build import build_lens
from normlens.models.copying import cast, structural_copy
from normlens.models.devices import usable_device
from normlens.models.edits.eps import convert_eps_encoded, has_eps_encoded
from normlens.models.identity import config_sha256, weights_sha256
from normlens.models.lens import Identity, Lens
from normlens.models.listing import known_ids
from normlens.models.norm_classes import NO_CLASSES, NormClasses
from normlens.models.openers.bridge import open_bridge
from normlens.models.openers.directory import open_bundled, open_local
from normlens.models.openers.hub import open_hub
from normlens.models.openers.memory import open_memory
from normlens.models.openers.package import open_package
from normlens.models.openers.request import Opened, Request
from normlens.models.openers.untrained import open_untrained
from normlens.models.tokenizers import TokenizerChoice, require_fit

OPENERS: tuple[Callable[[Request], Opened | None], ...] = (
    open_memory,
    open_bridge,
    open_untrained,
    open_bundled,
    open_package,
    open_local,
    open_hub,
)
"""Asked in this order; the first that does not answer None opens the model."""

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}


def open_model(
    source: str | Path | nn.Module,
    *,
    device: str = "cpu",
    dtype: str | None = None,
    revision: str | None = None,
    name: str | None = None,
    tokenizer: TokenizerChoice = ...,
    convert: bool = False,
    norm_classes: NormClasses = NO_CLASSES,
) -> Lens:
    """Open a model, find its norms and verify each against its spec.

    Args:
        source: id of a bundled or packaged model (``normlens models`` lists them), a
            directory, a hub id (``owner/name``), ``untrained:`` and one of these for its
            architecture before training, or a Hugging Face model or a TransformerLens
            bridge in memory, which is left untouched.
        device: torch device to put the model on.
        dtype: ``float32``, ``bfloat16``, ``float16`` or ``float64``; by default float32
            for stored models and their own dtype for models in memory.
        revision: branch, tag or commit of a hub model.
        name: shown in tables and figures instead of the id.
        tokenizer: instead of the one that comes with the model; required for a model in
            memory; None opens the model without one.
        convert: rewrite eps-encoded norms, where there are any, into clean fixed-scale
            modules (:func:`~normlens.models.convert_eps_encoded`).
        norm_classes: norm classes of your own, each with a function from a module to its
            :class:`~normlens.norms.NormSpec`. A spec that does not reproduce the module's
            output is not believed: the norm is then opaque.

    Raises:
        ModelNotFound: nothing at ``source``.
        CorruptModel: files are damaged or contradict each other.
        LoadError: unsupported architecture, pickled weights, eps-encoded in float16.
        UsageError: unknown device or dtype, or an option that does not fit the source.
        VerificationError: a norm does not run as the architecture says.
    """
    wanted = _dtype(dtype)
    target = usable_device(device)
    # Eps-encoded gains overflow float16: convert first, cast afterwards.
    late = convert and wanted is torch.float16
    request = Request(source, tokenizer, torch.float32 if late else wanted, revision)
    opened = _open(request)
    require_fit(opened.model, opened.tokenizer)
    nn.Module.to(opened.model, target)
    identity = _identity(opened, name)
    lens = build_lens(
        opened.model,
        opened.tokenizer,
        identity,
        opened.lineage,
        norm_classes=norm_classes,
    )
    if convert and has_eps_encoded(lens):
        lens = convert_eps_encoded(lens, norm_classes)
    return _cast(lens, torch.float16, norm_classes) if late else lens


def _open(request: Request) -> Opened:
    for opener in OPENERS:
        opened = opener(request)
        if opened is not None:
            if request.revision is not None and opener is not open_hub:
                raise UsageError("revision= is for models of the hub; leave it out")
            return opened
    known = known_ids()
    close = difflib.get_close_matches(str(request.source), known, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    raise ModelNotFound(
        f"no model {str(request.source)!r}: {hint}known ids: {', '.join(known)}; "
        "or give a directory or a hub id owner/name"
    )


def _identity(opened: Opened, name: str | None) -> Identity:
    return Identity(
        name=opened.name if name is None else name,
        source=opened.source,
        weights_sha256=weights_sha256(opened.model),
        config_sha256=config_sha256(opened.model.config),
        revision=opened.revision,
        licence=opened.licence,
        quantised_from=opened.quantised_from,
    )


def _cast(lens: Lens, dtype: torch.dtype, norm_classes: NormClasses) -> Lens:
    model = structural_copy(lens.model)
    cast(model, dtype)
    return build_lens(model, lens.tokenizer, lens.identity, lens.lineage, lens.edits, norm_classes)


def _dtype(name: str | None) -> torch.dtype | None:
    if name is None:
        return None
    if name not in DTYPES:
        raise UsageError(f"unknown dtype {name!r}; choose one of {', '.join(DTYPES)}")
    return DTYPES[name]
