"""A model as it was before training: its config's architecture, weights drawn anew.

Weights come from the architecture's own initialisation in transformers (``_init_weights``),
always on the CPU in float32 from a generator of the given seed, and are cast afterwards: one
seed is one model, on every device and in every dtype.
"""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from normlens import decoder
from normlens.errors import CorruptModel, LoadError
from normlens.models.checkpoint import named_class
from normlens.models.copying import cast
from normlens.models.export import MODEL_TYPE_PREFIX
from normlens.models.families import family_named
from normlens.models.metadata import read_config
from normlens.models.quiet import quiet_transformers


def untrained_model(path: Path, dtype: torch.dtype, seed: int) -> PreTrainedModel:
    """The model that ``config.json`` in ``path`` describes, untrained; weights are not read.

    The caller's random state is left as it is.

    Args:
        path: model directory.
        dtype: to cast to.
        seed: of the draw.

    Raises:
        ModelNotFound: no such directory, or it has no config.json.
        CorruptModel: the config is invalid.
        LoadError: unsupported architecture, or one with fixed scales.
    """
    fields = read_config(path)
    model_type = fields["model_type"]
    if model_type.startswith(MODEL_TYPE_PREFIX):
        raise LoadError(
            f"{path.name} has fixed scales, which come from training, so there is no untrained "
            "one; take untrained: of the model with live norms"
        )
    family_named(model_type)
    decoder.register()
    chosen = named_class(fields)
    try:
        with quiet_transformers(), torch.random.fork_rng(devices=[]):
            config = AutoConfig.from_pretrained(path, local_files_only=True)
            torch.default_generator.manual_seed(seed)
            model = (
                AutoModelForCausalLM.from_config(config, dtype=torch.float32)
                if chosen is AutoModelForCausalLM
                else chosen(config)
            )
    except Exception as error:  # a damaged config makes transformers raise nearly anything
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CorruptModel(f"{path / 'config.json'} is invalid: {reason}") from error
    cast(model, dtype)
    return model
