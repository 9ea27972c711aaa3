"""Writing a model as a directory: config.json, safetensors, atomically.

Weights go to float16, norm parameters and scales stay float32 (their rounding would move
every token alike). Three layouts, the plainest that describes the model:

* Hugging Face's own, where the model class builds every module of the model;
* ``model_type: normlens-<type>`` with the list ``normlens_fixed_scale``, where the only
  other modules are centred :class:`~normlens.norms.FixedScale` with gain and bias;
* ``model_type: normlens-<type>`` with ``normlens_norms`` (the fields of a
  :class:`~normlens.norms.NormSpec` per module path) and ``normlens_parameters`` (the shape
  of every parameter that the class builds in another shape or not at all), in
  ``normlens.safetensors``.

A loader that does not know these refuses the model type; a model class that is asked by name
to read the last layout finds no weights.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from normlens.atomic import atomic_directory
from normlens.models.detect import is_norm
from normlens.models.native import foreign_parts

MODEL_TYPE_PREFIX = "normlens-"
WEIGHTS = "model.safetensors"
OWN_WEIGHTS = "normlens.safetensors"
FIXED_SCALE_FIELD = "normlens_fixed_scale"
NORMS_FIELD = "normlens_norms"
PARAMETERS_FIELD = "normlens_parameters"
CLASS_FIELD = "normlens_class"


def write_model(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    path: Path,
    *,
    card: dict[str, object] | None = None,
    storage: torch.dtype = torch.float16,
    replace: bool = False,
) -> None:
    """Write ``model`` and ``tokenizer`` to ``path``.

    Args:
        model: of a class that transformers can build from its config; its norms may be any
            that :func:`~normlens.norms.make_norm` builds.
        tokenizer: saved beside it, if there is one.
        path: directory to create.
        card: provenance written as ``normlens.json`` (ancestor, recipe, versions, ...).
        storage: dtype of everything that is not a norm's parameter.
        replace: whether an existing directory may be replaced.

    Raises:
        NotApplicable: the model has a module that neither its class builds nor a spec
            describes.
        OutputError: ``path`` exists and ``replace`` is false, or cannot be written.
    """
    foreign = foreign_parts(model)
    config = model.config.to_diff_dict()
    config["dtype"] = "float32"
    config["architectures"] = [type(model).__name__]
    config["model_type"] = model.config.model_type
    weights = WEIGHTS
    if foreign:
        config["architectures"] = []
        config["model_type"] = MODEL_TYPE_PREFIX + model.config.model_type
    if foreign.only_fixed_scale:
        config[FIXED_SCALE_FIELD] = sorted(foreign.norms)
    elif foreign:
        weights = OWN_WEIGHTS
        config[CLASS_FIELD] = type(model).__name__
        config[NORMS_FIELD] = foreign.norm_fields()
        config[PARAMETERS_FIELD] = {name: list(s) for name, s in foreign.parameters.items()}
    tensors = _tensors(model, storage)
    with atomic_directory(path, replace=replace) as temporary:
        save_file(tensors, temporary / weights, metadata={"format": "pt"})
        _write_json(temporary / "config.json", config)
        if card is not None:
            _write_json(temporary / "normlens.json", card)
        if tokenizer is not None:
            tokenizer.save_pretrained(temporary)


def _tensors(model: PreTrainedModel, storage: torch.dtype) -> dict[str, torch.Tensor]:
    norms = {name for name, module in model.named_modules() if is_norm(module)}
    tied = set(model._tied_weights_keys or {}) if model.config.tie_word_embeddings else set()
    tensors = {}
    for name, value in model.state_dict().items():
        if name in tied:
            continue
        in_norm = any(name.startswith(f"{norm}.") for norm in norms)
        dtype = torch.promote_types(torch.float32, storage) if in_norm else storage
        dtype = dtype if value.is_floating_point() else value.dtype
        tensors[name] = value.detach().to("cpu", dtype).contiguous().clone()
    return tensors


def _write_json(path: Path, value: dict[str, object]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
