"""What a corpus run in another process is asked for, as JSON, and as a command to type."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from normlens import catalog
from normlens.workbench.choices import CorpusChoice, ModelChoice, distinct_names
from normlens.workbench.parameters import as_recorded, chosen

ORDER = "order.json"
PROGRESS = "progress.json"
"""Files of a job's directory: what to do, and how far it is."""

DEFAULTS = CorpusChoice(sequences=256)
"""What ``normlens run`` reads where its options do not say otherwise."""


@dataclass(frozen=True)
class Order:
    """Analyses on models over a corpus.

    Attributes:
        names: analyses.
        models: how each is opened; sources are what ``open_model`` takes.
        shown: a distinct name for each.
        corpus: what is read.
        parameters: by analysis name, every field.
        store: directory of results.
        reference: what analyses that compare set the models against; None for the first.
        fresh: compute again what is stored.
        batch_size: sequences per forward pass.
    """

    names: tuple[str, ...]
    models: tuple[ModelChoice, ...]
    shown: tuple[str, ...]
    corpus: CorpusChoice
    parameters: Mapping[str, Mapping[str, Any]]
    store: str
    reference: ModelChoice | None = None
    fresh: bool = False
    batch_size: int = 16

    @property
    def command(self) -> str:
        """The command that does the same.

        Where models are opened in different ways there is one command for each way, since
        the options of one command hold for all of its models.
        """
        ways: dict[ModelChoice, list[str]] = {}
        for choice in self.models:
            way = ModelChoice("", choice.device, choice.dtype, choice.revision, choice.convert)
            ways.setdefault(way, []).append(choice.source)
        reference = self.reference.source if self.reference else None
        if len(ways) > 1 and any(catalog.get(name).compares for name in self.names):
            reference = reference or self.models[0].source
        return " && ".join(
            shlex.join(self._words(way, sources, reference)) for way, sources in ways.items()
        )

    def _words(self, way: ModelChoice, sources: Sequence[str], reference: str | None) -> list[str]:
        words = ["normlens", "run", *self.names, *sources]
        options: dict[str, Any] = {
            "--reference": reference,
            "--device": None if way.device == "cpu" else way.device,
            "--dtype": way.dtype,
            "--revision": way.revision,
            "--convert": way.convert,
            "--text": _unless(self.corpus.text, DEFAULTS.text),
            "--sequences": _unless(self.corpus.sequences, DEFAULTS.sequences),
            "--context": self.corpus.context,
            "--bos": _unless(self.corpus.bos, DEFAULTS.bos),
            "--batch-size": _unless(self.batch_size, 16),
            "--store": self.store,
            "--fresh": self.fresh,
        }
        for name in self.names:
            analysis = catalog.get(name)
            default = as_recorded(analysis.parameters())
            for field, value in self.parameters.get(name, {}).items():
                flag = f"--{name}.{field.replace('_', '-')}"
                options[flag] = _unless(value, default[field])
        for flag, value in options.items():
            words += _flag(flag, value)
        return words

    def to_json(self) -> str:
        """The order as text."""
        return json.dumps(asdict(self), indent=2, sort_keys=True) + "\n"

    @staticmethod
    def from_json(text: str) -> Order:
        """The order that :meth:`to_json` wrote."""
        found = json.loads(text)
        reference = found["reference"]
        return Order(
            names=tuple(found["names"]),
            models=tuple(ModelChoice(**model) for model in found["models"]),
            shown=tuple(found["shown"]),
            corpus=CorpusChoice(**found["corpus"]),
            parameters=found["parameters"],
            store=found["store"],
            reference=None if reference is None else ModelChoice(**reference),
            fresh=found["fresh"],
            batch_size=found["batch_size"],
        )


def order_of(
    names: Sequence[str],
    choices: Sequence[ModelChoice],
    resolved: Sequence[str],
    corpus: CorpusChoice,
    parameters: Mapping[str, Mapping[str, Any]],
    store: Path,
) -> Order:
    """The order for chosen models; names and parameters are checked.

    Args:
        names: analyses.
        choices: the models as chosen.
        resolved: what ``open_model`` takes for each.
        corpus: what is read.
        parameters: by analysis name; fields that are left out take their defaults.
        store: directory of results.

    Raises:
        UnknownName: no such analysis.
        UsageError: bad parameters.
    """
    return Order(
        names=tuple(names),
        models=tuple(
            ModelChoice(source, choice.device, choice.dtype, choice.revision, choice.convert)
            for choice, source in zip(choices, resolved, strict=True)
        ),
        shown=distinct_names(choices),
        corpus=corpus,
        parameters={
            name: as_recorded(chosen(catalog.get(name), parameters.get(name))) for name in names
        },
        store=str(store.resolve()),
    )


def _unless(value: Any, default: Any) -> Any:
    return None if value == default else value


def _flag(flag: str, value: Any) -> list[str]:
    if value is None or value is False:
        return []
    if value is True:
        return [flag]
    if isinstance(value, list):
        return [word for item in value for word in (flag, str(item))]
    return [flag, str(value)]
