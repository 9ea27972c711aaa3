"""Loading a model directory strictly: what the files say is what is loaded, or an error.

Two layouts: Hugging Face (config.json and safetensors), and the same with
``model_type: normlens-<type>`` whose norms in ``normlens_fixed_scale`` are FixedScale
modules with a ``<path>.scale`` tensor (see :mod:`normlens.models.export`). Pickled weights
and remote code are never read.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedModel,
)

from normlens.errors import CorruptModel, LoadError, ModelNotFound
from normlens.models.export import MODEL_TYPE_PREFIX
from normlens.models.families import FAMILIES, family_named
from normlens.models.metadata import read_config, read_json
from normlens.models.quiet import quiet_transformers
from normlens.norms import FixedScale

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def load_checkpoint_directory(path: Path, dtype: torch.dtype) -> PreTrainedModel:
    """The model in ``path``, every tensor accounted for, in ``dtype`` on the CPU.

    A causal LM, or an encoder where its config names one that is supported.

    Raises:
        ModelNotFound: no such directory, or it has no config.json.
        CorruptModel: config and weights contradict each other or cannot be read.
        LoadError: unsupported architecture, pickled or quantised weights.
    """
    config = read_config(path)
    model_type = config["model_type"]
    family_named(model_type.removeprefix(MODEL_TYPE_PREFIX))
    if "quantization_config" in config:
        raise LoadError(f"{path} is quantised; open the unquantised model instead")
    _check_weight_files(path)
    if model_type.startswith(MODEL_TYPE_PREFIX):
        return _load_fixed_scale(path, config, dtype)
    options = {"dtype": dtype, "use_safetensors": True, "local_files_only": True}
    return _strict(path, path, named_class(config), **options)


def _check_weight_files(path: Path) -> None:
    index = path / INDEX
    if (path / WEIGHTS).is_file():
        names = {WEIGHTS}
    elif index.is_file():
        names = set(read_json(index).get("weight_map", {}).values())
    else:
        pickled = sorted(file.name for pattern in PICKLED for file in path.glob(pattern))
        if pickled:
            raise LoadError(
                f"{path} has only pickled weights ({pickled[0]}), which can run code when they "
                "are loaded; convert them with save_pretrained(..., safe_serialization=True)"
            )
        raise ModelNotFound(f"{path} has no {WEIGHTS}; give the directory of a saved model")
    for name in sorted(names):
        if not (path / name).is_file():
            raise CorruptModel(f"{path} lacks {name}, which {INDEX} names; fetch it again")
        try:
            with safe_open(path / name, framework="pt"):
                pass
        except (SafetensorError, OSError) as error:
            raise CorruptModel(f"{path / name} is damaged ({error}); fetch it again") from error


def _load_fixed_scale(path: Path, fields: dict[str, Any], dtype: torch.dtype) -> PreTrainedModel:
    paths = fields.pop("normlens_fixed_scale", None)
    if not isinstance(paths, list):
        raise CorruptModel(f"{path / 'config.json'} lacks the list normlens_fixed_scale")
    model_type = fields.pop("model_type").removeprefix(MODEL_TYPE_PREFIX)
    tensors = load_file(path / WEIGHTS)
    scales = {norm: _scale(path, tensors, str(norm)) for norm in paths}
    # transformers announces every config field it does not know; these describe the file.
    for field in ("architectures", "dtype", "transformers_version"):
        fields.pop(field, None)
    try:
        config = AutoConfig.for_model(model_type, **fields)
    except Exception as error:  # a damaged config makes transformers raise nearly anything
        raise CorruptModel(f"{path / 'config.json'} is invalid: {_first_line(error)}") from error
    model_class = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    model = _strict(path, None, model_class, config=config, state_dict=tensors, dtype=dtype)
    for norm, scale in scales.items():
        _install_fixed_scale(path, model, norm, scale)
    return model


def _scale(path: Path, tensors: dict[str, Tensor], norm: str) -> float:
    name = f"{norm}.scale"
    if name not in tensors:
        raise CorruptModel(f"{path / WEIGHTS} lacks tensor {name}; fetch it again")
    scale = tensors.pop(name)
    if scale.numel() != 1 or not 0 < scale.item() < float("inf"):
        raise CorruptModel(f"{path / WEIGHTS}: {name} is not one positive finite number")
    return scale.item()


def _install_fixed_scale(path: Path, model: PreTrainedModel, norm: str, scale: float) -> None:
    try:
        old = model.get_submodule(norm)
    except AttributeError:
        old = None
    if not isinstance(old, nn.LayerNorm):
        raise CorruptModel(f"{path / 'config.json'}: normlens_fixed_scale names {norm}, not a norm")
    new = FixedScale(old.weight.shape[0], scale)
    new.weight, new.bias = old.weight, old.bias
    new.scale = new.scale.to(old.weight.dtype)
    model.set_submodule(norm, new.eval())


def _strict(path: Path, source: Path | None, model_class: Any, **options: Any) -> PreTrainedModel:
    """from_pretrained, refusing any tensor that is missing, left over or of another shape."""
    try:
        with quiet_transformers():
            model, info = model_class.from_pretrained(
                source,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                attn_implementation="sdpa",
                **options,
            )
    except Exception as error:  # a damaged config makes transformers raise nearly anything
        raise CorruptModel(f"{path} cannot be loaded: {_first_line(error)}") from error
    _refuse_loading_problems(path, info)
    return model


def named_class(fields: Mapping[str, Any]) -> Any:
    """The class to build from the fields of a config.

    The causal LM of the model type, or the class in the config where a row is for it alone.
    """
    named = next(iter(fields.get("architectures") or ()), None)
    rows = [row for row in FAMILIES if row.model_type == fields["model_type"]]
    if named is not None and named in {row.model_class for row in rows}:
        return getattr(transformers, named)
    return AutoModelForCausalLM


def _refuse_loading_problems(path: Path, info: Mapping[str, Any]) -> None:
    if info["mismatched_keys"]:
        name, in_file, in_model = sorted(info["mismatched_keys"])[0]
        raise CorruptModel(
            f"{path}: tensor {name} has shape {tuple(in_file)}, the config asks for "
            f"{tuple(in_model)}; use the config that belongs to these weights"
        )
    for problem, what in (("missing_keys", "lacks"), ("unexpected_keys", "has, unasked,")):
        if info[problem]:
            names = sorted(info[problem])
            raise CorruptModel(
                f"{path} {what} tensor {names[0]} ({len(names)} in all) by its config.json; "
                "use the config that belongs to these weights"
            )
    if info["error_msgs"]:
        raise CorruptModel(f"{path}: {info['error_msgs'][0]}")


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
