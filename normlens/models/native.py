"""What of a model its class would not build from its config: edited norms, added parameters.

The class is built once more without memory (torch's meta device) and compared module by
module: by class, norms by their spec too, then parameter by parameter.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from normlens.errors import NotApplicable, UsageError
from normlens.models.detect import is_norm, live_spec
from normlens.models.quiet import quiet_transformers
from normlens.norms import NormKind, NormSpec


@dataclass(frozen=True)
class Foreign:
    """What the class of a model does not build.

    Attributes:
        norms: spec by module path.
        parameters: shape by name, of parameters outside these norms that have another shape
            or do not exist in the class.
    """

    norms: Mapping[str, NormSpec]
    parameters: Mapping[str, tuple[int, ...]]

    def __bool__(self) -> bool:
        return bool(self.norms or self.parameters)

    @property
    def only_fixed_scale(self) -> bool:
        """Whether all of it is centred fixed-scale norms with one constant, gain and bias."""
        return (
            bool(self.norms)
            and not self.parameters
            and all(
                spec
                == NormSpec(
                    NormKind.FIXED_SCALE,
                    spec.width,
                    centred=True,
                    gain=True,
                    bias=True,
                    fixed_scale=spec.fixed_scale,
                )
                and spec.fixed_scale is not None
                for spec in self.norms.values()
            )
        )

    def norm_fields(self) -> dict[str, dict[str, object]]:
        """Per path, the fields of the spec that are not their defaults, as JSON data."""
        return {path: _json_fields(spec) for path, spec in sorted(self.norms.items())}


def spec_from_fields(values: Mapping[str, Any]) -> NormSpec:
    """The inverse of :meth:`Foreign.norm_fields` for one norm.

    Raises:
        UsageError: the fields are not those of a norm.
    """
    fields = dict(values)
    width = fields.pop("width", None)
    if not isinstance(width, int) or width < 1:
        raise UsageError(f"a norm has no width {width!r}")
    return NormSpec.of(fields, width)


def foreign_parts(model: PreTrainedModel) -> Foreign:
    """Compare a model with what its class builds from its config.

    Raises:
        NotApplicable: a module is of another class and no norm with a known spec, or a
            parameter that the class builds is gone.
    """
    built = dict(_built(model).named_modules())
    norms: dict[str, NormSpec] = {}
    for path, module in model.named_modules():
        if _inside(path, norms):
            continue
        native = built.get(path)
        if native is None:
            raise NotApplicable(
                f"{path} is a module that {type(model).__name__} does not build, so it cannot be "
                "saved; only norms may be exchanged"
            )
        spec = _spec(module, native)
        if _class_name(module) != _class_name(native):
            if spec is None or spec.kind is NormKind.OPAQUE:
                raise NotApplicable(
                    f"{path} is a {type(module).__name__}, which {type(model).__name__} does not "
                    "build and which is no norm of a known kind, so it cannot be saved"
                )
            norms[path] = spec
        elif spec is not None and not _same_but_for_tensors(spec, _spec(native, native)):
            norms[path] = spec
    return Foreign(norms, _parameters(model, built[""], norms))


def _json_fields(spec: NormSpec) -> dict[str, object]:
    default = vars(NormSpec(spec.kind, spec.width))
    chosen = {key: value for key, value in vars(spec).items() if value != default[key]}
    return {"kind": spec.kind.value, "width": spec.width, **chosen}


def _built(model: PreTrainedModel) -> nn.Module:
    config = copy.deepcopy(model.config)
    with quiet_transformers(), torch.device("meta"):
        return type(model)(config)


def _parameters(
    model: nn.Module, built: nn.Module, norms: Mapping[str, NormSpec]
) -> dict[str, tuple[int, ...]]:
    native = {
        name: tuple(p.shape)
        for name, p in built.named_parameters(remove_duplicate=False)
        if not _inside(name, norms)
    }
    own = {
        name: tuple(p.shape)
        for name, p in model.named_parameters(remove_duplicate=False)
        if not _inside(name, norms)
    }
    if gone := sorted(set(native) - set(own)):
        raise NotApplicable(
            f"the model lacks parameter {gone[0]}, which {type(model).__name__} builds, so it "
            "cannot be saved"
        )
    return {name: shape for name, shape in own.items() if native.get(name) != shape}


def _spec(module: nn.Module, native: nn.Module) -> NormSpec | None:
    """Spec of a norm, or of what stands at the place of one."""
    if not is_norm(module) and not is_norm(native):
        return None
    return live_spec(module, _width(module) or _width(native) or 1)


def _same_but_for_tensors(spec: NormSpec, native: NormSpec | None) -> bool:
    """Whether two norms of one class differ at most in constants that are saved as tensors."""
    if native is None:
        return False
    stored = {"alpha": native.alpha, "fixed_scale": native.fixed_scale}
    return replace(spec, **{k: v for k, v in stored.items() if vars(spec)[k] and v}) == native


def _width(module: nn.Module) -> int | None:
    for name in ("weight", "bias"):
        parameter = dict(module.named_parameters(recurse=False)).get(name)
        if parameter is not None and parameter.ndim:
            return parameter.shape[-1]
    shape = vars(module).get("normalized_shape", vars(module).get("width"))
    return shape[-1] if isinstance(shape, tuple) else shape


def _inside(path: str, norms: Mapping[str, NormSpec]) -> bool:
    return any(path == norm or path.startswith(f"{norm}.") for norm in norms)


def _class_name(module: nn.Module) -> tuple[str, str]:
    return type(module).__module__, type(module).__qualname__
