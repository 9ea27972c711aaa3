"""Building a model so that no tensor is missing, left over or of another shape."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import transformers
from transformers import AutoModelForCausalLM, PreTrainedModel

from normlens.errors import CorruptModel
from normlens.models.families import FAMILIES
from normlens.models.quiet import quiet_transformers


def strict_load(
    path: Path,
    source: Path | None,
    model_class: Any,
    *,
    absent: Collection[str] = (),
    **options: Any,
) -> PreTrainedModel:
    """from_pretrained, refusing any tensor that is missing, left over or of another shape.

    Args:
        path: for messages.
        source: directory to read, None where ``state_dict`` holds the tensors.
        model_class: to build.
        absent: modules and parameters whose tensors are put in afterwards.
        options: of ``from_pretrained``.

    Raises:
        CorruptModel: config and tensors contradict each other.
    """
    try:
        with quiet_transformers():
            model, info = model_class.from_pretrained(
                source,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                **options,
            )
    except Exception as error:  # a damaged config makes transformers raise nearly anything
        raise CorruptModel(f"{path} cannot be loaded: {first_line(error)}") from error
    missing = {name for name in info["missing_keys"] if not covers(absent, name)}
    _refuse_loading_problems(path, {**info, "missing_keys": missing})
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


def covers(paths: Collection[str], name: str) -> bool:
    """Whether ``name`` is one of ``paths`` or inside one."""
    return any(name == path or name.startswith(f"{path}.") for path in paths)


def first_line(error: Exception) -> str:
    """What an error says first."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
