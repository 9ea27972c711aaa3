"""Loading models whose norms, or the shapes of whose parameters, their class does not build.

The class is built from the config with every tensor that it knows; then each norm that the
config describes is built from its spec (``make_norm``) and put in its place, and each
parameter of another shape replaced. The layouts are told in
:mod:`normlens.models.export`; a directory of either of ours can be loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.pytorch_utils import Conv1D

from normlens.errors import CorruptModel, UsageError
from normlens.models.checkpoint_strict import covers, first_line, named_class, strict_load
from normlens.models.detect import is_norm
from normlens.models.export import (
    CLASS_FIELD,
    FIXED_SCALE_FIELD,
    MODEL_TYPE_PREFIX,
    NORMS_FIELD,
    OWN_WEIGHTS,
    PARAMETERS_FIELD,
    WEIGHTS,
)
from normlens.models.native import spec_from_fields
from normlens.norms import NormKind, NormSpec, make_norm

# transformers announces every config field it does not know; these describe the file.
_OF_THE_FILE = ("architectures", "dtype", "transformers_version")


@dataclass(frozen=True)
class _Described:
    """What a config says beyond what its class builds."""

    norms: Mapping[str, NormSpec]
    parameters: Mapping[str, tuple[int, ...]]
    tensors: dict[str, Tensor]
    class_name: str | None

    @property
    def absent(self) -> frozenset[str]:
        return frozenset({*self.norms, *self.parameters})


def load_own_layout(path: Path, fields: dict[str, Any], dtype: torch.dtype) -> PreTrainedModel:
    """The model of a directory of model type ``normlens-<type>``, in ``dtype`` on the CPU.

    Args:
        path: the directory.
        fields: of its config.json.
        dtype: to cast to.

    Raises:
        CorruptModel: config and tensors contradict each other.
    """
    model_type = fields["model_type"].removeprefix(MODEL_TYPE_PREFIX)
    described = _described(path, fields) if NORMS_FIELD in fields else _fixed_scale(path, fields)
    ours = (NORMS_FIELD, PARAMETERS_FIELD, CLASS_FIELD, FIXED_SCALE_FIELD, "model_type")
    plain = {key: v for key, v in fields.items() if key not in (*ours, *_OF_THE_FILE)}
    try:
        config = AutoConfig.for_model(model_type, **plain)
    except Exception as error:  # a damaged config makes transformers raise nearly anything
        raise CorruptModel(f"{path / 'config.json'} is invalid: {first_line(error)}") from error
    known = {n: t for n, t in described.tensors.items() if not covers(described.absent, n)}
    model = strict_load(
        path,
        None,
        _model_class(config, described.class_name),
        absent=described.absent,
        config=config,
        state_dict=known,
        dtype=dtype,
    )
    for norm, spec in described.norms.items():
        _install(path, model, norm, spec, described.tensors, dtype)
    for name, shape in described.parameters.items():
        _put(path, model, name, shape, described.tensors, dtype)
    return model


def _described(path: Path, fields: Mapping[str, Any]) -> _Described:
    config = path / "config.json"
    norms, parameters = fields[NORMS_FIELD], fields.get(PARAMETERS_FIELD, {})
    if not isinstance(norms, dict) or not isinstance(parameters, dict):
        raise CorruptModel(f"{config}: {NORMS_FIELD} and {PARAMETERS_FIELD} must be objects")
    try:
        specs = {norm: spec_from_fields(values) for norm, values in norms.items()}
        shapes = {name: tuple(int(n) for n in shape) for name, shape in parameters.items()}
    except (TypeError, ValueError, UsageError) as error:
        raise CorruptModel(f"{config} describes a norm wrongly: {first_line(error)}") from error
    tensors = load_file(path / OWN_WEIGHTS)
    for norm, spec in specs.items():
        if spec.kind is NormKind.FIXED_SCALE:
            # A factor wraps the norm, so its scale may be one level down.
            wrapped = f"{norm}.norm.scale"
            _check_scale(path, tensors, wrapped if wrapped in tensors else f"{norm}.scale")
    return _Described(specs, shapes, tensors, fields.get(CLASS_FIELD))


def _fixed_scale(path: Path, fields: Mapping[str, Any]) -> _Described:
    paths = fields.get(FIXED_SCALE_FIELD)
    if not isinstance(paths, list):
        raise CorruptModel(f"{path / 'config.json'} lacks the list {FIXED_SCALE_FIELD}")
    tensors = load_file(path / WEIGHTS)
    norms: dict[str, NormSpec] = {}
    for norm in map(str, paths):
        _check_scale(path, tensors, f"{norm}.scale")
        for leaf in ("weight", "bias"):
            if f"{norm}.{leaf}" not in tensors:
                raise CorruptModel(f"{path} lacks tensor {norm}.{leaf}; fetch it again")
        norms[norm] = NormSpec(
            NormKind.FIXED_SCALE,
            tensors[f"{norm}.weight"].shape[-1],
            centred=True,
            gain=True,
            bias=True,
            fixed_scale=tensors[f"{norm}.scale"].item(),
        )
    return _Described(norms, {}, tensors, None)


def _check_scale(path: Path, tensors: Mapping[str, Tensor], name: str) -> None:
    """A scale is what a norm divides by: positive and finite."""
    scale = tensors.get(name)
    if scale is None:
        raise CorruptModel(f"{path} lacks tensor {name}; fetch it again")
    if not scale.numel() or not ((scale > 0) & scale.isfinite()).all():
        raise CorruptModel(f"{path}: {name} is not one positive finite number")


def _model_class(config: PretrainedConfig, name: str | None) -> Any:
    chosen = named_class({"model_type": config.model_type, "architectures": [name]})
    if chosen is AutoModelForCausalLM:
        return MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    return chosen


def _install(
    path: Path,
    model: PreTrainedModel,
    norm: str,
    spec: NormSpec,
    tensors: Mapping[str, Tensor],
    dtype: torch.dtype,
) -> None:
    try:
        old = model.get_submodule(norm)
    except AttributeError:
        old = None
    if old is None or not (is_norm(old) or isinstance(old, nn.Identity)):
        raise CorruptModel(f"{path / 'config.json'} describes {norm} as a norm, which it is not")
    own = {n.removeprefix(f"{norm}."): t for n, t in tensors.items() if covers([norm], n)}
    try:
        new = make_norm(spec)
        new.load_state_dict(own)
    except (RuntimeError, ValueError, UsageError) as error:
        raise CorruptModel(
            f"{path}: norm {norm} cannot be built: {' '.join(first_line(error).split())}"
        ) from error
    model.set_submodule(norm, new.to(dtype).eval())


def _put(
    path: Path,
    model: PreTrainedModel,
    name: str,
    shape: tuple[int, ...],
    tensors: Mapping[str, Tensor],
    dtype: torch.dtype,
) -> None:
    if name not in tensors or tuple(tensors[name].shape) != shape:
        raise CorruptModel(f"{path} lacks tensor {name} of shape {shape}; fetch it again")
    owner, _, leaf = name.rpartition(".")
    try:
        module = model.get_submodule(owner)
    except AttributeError as error:
        raise CorruptModel(f"{path / 'config.json'} names {name}, which is nowhere") from error
    module.register_parameter(leaf, nn.Parameter(tensors[name].to(dtype), requires_grad=False))
    if leaf == "weight" and len(shape) == 2:
        _tell_shape(module, shape)


def _tell_shape(module: nn.Module, shape: tuple[int, ...]) -> None:
    match module:
        case nn.Linear():
            module.out_features, module.in_features = shape
        case nn.Embedding():
            module.embedding_dim = shape[1]
        case Conv1D():
            module.nx, module.nf = shape
