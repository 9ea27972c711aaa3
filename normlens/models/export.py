"""Writing a model as a directory: HF layout, safetensors, atomically.

Weights go to float16, norm parameters and scales stay float32 (their rounding would move
every token alike). A model with :class:`FixedScale` modules keeps their ``scale`` tensors
and gets the model type ``normlens-<type>``: a loader that does not know the kind must
refuse it, since it would put the live LayerNorm scale back without a word.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from normlens.atomic import atomic_directory
from normlens.errors import NotApplicable
from normlens.models.detect import is_norm
from normlens.norms.fixed_scale import FixedScale

MODEL_TYPE_PREFIX = "normlens-"


def write_model(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    path: Path,
    *,
    card: dict[str, object] | None = None,
    storage: torch.dtype = torch.float16,
    replace: bool = False,
) -> None:
    """Write ``model`` and ``tokenizer`` to ``path``.

    Args:
        model: a causal LM; its :class:`FixedScale` modules must be centred.
        tokenizer: saved beside it.
        path: directory to create.
        card: provenance written as ``normlens.json`` (ancestor, recipe, versions, ...).
        storage: dtype of everything that is not a norm's parameter.
        replace: whether an existing directory may be replaced.

    Raises:
        NotApplicable: a FixedScale does not centre its input.
        OutputError: ``path`` exists and ``replace`` is false, or cannot be written.
    """
    fixed = {name: m for name, m in model.named_modules() if isinstance(m, FixedScale)}
    uncentred = [name for name, m in fixed.items() if not m.centred]
    if uncentred:
        raise NotApplicable(f"{uncentred[0]} does not centre its input, which this layout implies")
    norms = {name for name, m in model.named_modules() if is_norm(m)}
    tied = set(model._tied_weights_keys or {}) if model.config.tie_word_embeddings else set()
    tensors = {}
    for name, value in model.state_dict().items():
        if name in tied:
            continue
        dtype = torch.float32 if name.rpartition(".")[0] in norms else storage
        tensors[name] = value.detach().to("cpu", dtype).contiguous().clone()
    config = model.config.to_diff_dict()
    config["dtype"] = "float32"
    config["architectures"] = [type(model).__name__]
    config["model_type"] = model.config.model_type
    if fixed:
        config["architectures"] = []
        config["model_type"] = MODEL_TYPE_PREFIX + model.config.model_type
        config["normlens_fixed_scale"] = sorted(fixed)
    with atomic_directory(path, replace=replace) as temporary:
        save_file(tensors, temporary / "model.safetensors", metadata={"format": "pt"})
        _write_json(temporary / "config.json", config)
        if card is not None:
            _write_json(temporary / "normlens.json", card)
        tokenizer.save_pretrained(temporary)


def _write_json(path: Path, value: dict[str, object]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
