"""From the parameters an analysis declares to command-line flags.

``ScaleParameters.per_token`` becomes ``--scale.per-token``, with the declared description
as its help. The flags are parsed into plain dataclasses; the declared ones validate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, field, make_dataclass
from typing import Annotated, Any

from cyclopts import Parameter
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from normlens.catalog import ALL, Analysis
from normlens.errors import UsageError


def _flags(analysis: Analysis) -> type[Any]:
    declared: Mapping[str, FieldInfo] = analysis.parameters.__pydantic_fields__
    fields = [
        (
            name,
            Annotated[info.annotation or str, Parameter(help=info.description, negative_bool=())],
            field(default=info.default),
        )
        for name, info in declared.items()
    ]
    name = analysis.parameters.__name__
    return make_dataclass(name, fields, frozen=True, namespace={"__module__": __name__})


def _all_flags() -> Any:
    fields = []
    for analysis in ALL:
        flags = _flags(analysis)
        group = f"Parameters of {analysis.name}"
        annotation = Annotated[flags, Parameter(name=f"--{analysis.name}", group=group)]
        fields.append((_attribute(analysis.name), annotation, field(default_factory=flags)))
    made = make_dataclass("AnalysisFlags", fields, frozen=True, namespace={"__module__": __name__})
    return Parameter(name="*")(made)


def _attribute(name: str) -> str:
    return name.replace("-", "_")


AnalysisFlags = _all_flags()


def chosen_parameters(flags: Any | None) -> dict[str, Any]:
    """The validated parameter object of every analysis, by its name.

    Raises:
        UsageError: a value out of its bounds; names the flag.
    """
    flags = flags if flags is not None else AnalysisFlags()
    chosen = {}
    for analysis in ALL:
        try:
            chosen[analysis.name] = analysis.parameters(
                **asdict(getattr(flags, _attribute(analysis.name)))
            )
        except ValidationError as error:
            first = error.errors()[0]
            flag = ".".join([f"--{analysis.name}", *(str(part) for part in first["loc"])])
            message = f"{flag.replace('_', '-')}: {first['msg']}, got {first['input']!r}"
            raise UsageError(message) from error
    return chosen
