"""Loading a model directory strictly: what the files say is what is loaded, or an error.

The layouts are those of :mod:`normlens.models.export`; see
:mod:`normlens.models.checkpoint_norms` for norms that the model class does not build.
Pickled weights and remote code are never read.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from transformers import PreTrainedModel

from normlens import decoder
from normlens.errors import CorruptModel, LoadError, ModelNotFound
from normlens.models.checkpoint_norms import load_own_layout
from normlens.models.checkpoint_strict import named_class, strict_load
from normlens.models.export import MODEL_TYPE_PREFIX, NORMS_FIELD, OWN_WEIGHTS, WEIGHTS
from normlens.models.families import family_named
from normlens.models.metadata import read_config, read_json

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
    decoder.register()
    config = read_config(path)
    model_type = config["model_type"]
    family_named(model_type.removeprefix(MODEL_TYPE_PREFIX))
    if "quantization_config" in config:
        raise LoadError(f"{path} is quantised; open the unquantised model instead")
    _check_weight_files(path, OWN_WEIGHTS if NORMS_FIELD in config else WEIGHTS)
    if model_type.startswith(MODEL_TYPE_PREFIX):
        return load_own_layout(path, config, dtype)
    options = {"dtype": dtype, "use_safetensors": True, "local_files_only": True}
    return strict_load(path, path, named_class(config), **options)


def _check_weight_files(path: Path, weights: str) -> None:
    index = path / INDEX
    if (path / weights).is_file():
        names = {weights}
    elif index.is_file():
        names = set(read_json(index).get("weight_map", {}).values())
    else:
        pickled = sorted(file.name for pattern in PICKLED for file in path.glob(pattern))
        if pickled:
            raise LoadError(
                f"{path} has only pickled weights ({pickled[0]}), which can run code when they "
                "are loaded; convert them with save_pretrained(..., safe_serialization=True)"
            )
        raise ModelNotFound(f"{path} has no {weights}; give the directory of a saved model")
    for name in sorted(names):
        if not (path / name).is_file():
            raise CorruptModel(f"{path} lacks {name}, which {INDEX} names; fetch it again")
        try:
            with safe_open(path / name, framework="pt"):
                pass
        except (SafetensorError, OSError) as error:
            raise CorruptModel(f"{path / name} is damaged ({error}); fetch it again") from error
