"""How the explorer was started; the command hands it to the app in environment variables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from normlens.errors import UsageError
from normlens.models.cache import cache_directory
from normlens.workbench.bundled import bundled_results
from normlens.workbench.sources import Sources

MODELS = "NORMLENS_APP_MODELS"
RESULTS = "NORMLENS_APP_RESULTS"
MODEL_ROOT = "NORMLENS_APP_MODEL_ROOT"
ONLINE = "NORMLENS_APP_ONLINE"
RUNS = "NORMLENS_APP_RUNS"
DEFAULT_MODELS = ("books-ln", "books-lnfree")


@dataclass(frozen=True)
class Launch:
    """What the command line chose.

    Attributes:
        models: shown at first, the reference first.
        results: the user's store; None for the one in the user cache.
        model_root: directory below which models may be opened.
        online: whether hub ids may be opened.
        runs: directory of training runs.
    """

    models: tuple[str, ...] = DEFAULT_MODELS
    results: Path | None = None
    model_root: Path | None = None
    online: bool = False
    runs: Path | None = None

    @property
    def store(self) -> Path:
        """The user's store."""
        return self.results or cache_directory("store")

    @property
    def roots(self) -> tuple[Path, ...]:
        """Where results are looked for: the user's store, then those that come along."""
        return (self.store, bundled_results())

    @property
    def sources(self) -> Sources:
        """What may be opened."""
        return Sources(self.model_root, self.online, self.models)

    def environment(self) -> dict[str, str]:
        """The variables that say the same."""
        paths = {RESULTS: self.results, MODEL_ROOT: self.model_root, RUNS: self.runs}
        return {
            MODELS: json.dumps(self.models),
            ONLINE: "1" if self.online else "",
            **{name: str(path.resolve()) for name, path in paths.items() if path is not None},
        }

    @staticmethod
    def from_environment(environment: Mapping[str, str]) -> Launch:
        """The launch that variables describe; what is not set is as by default.

        Raises:
            UsageError: the list of models is not one.
        """
        text = environment.get(MODELS, "")
        try:
            models = json.loads(text) if text else list(DEFAULT_MODELS)
        except ValueError as error:
            raise UsageError(f"{MODELS} is not a JSON list of models: {error}") from error
        if not isinstance(models, list) or not all(isinstance(model, str) for model in models):
            raise UsageError(f"{MODELS} is not a JSON list of models: {text}")
        return Launch(
            models=tuple(models),
            results=_path(environment, RESULTS),
            model_root=_path(environment, MODEL_ROOT),
            online=environment.get(ONLINE, "").lower() in ("1", "true", "yes"),
            runs=_path(environment, RUNS),
        )


def _path(environment: Mapping[str, str], name: str) -> Path | None:
    text = environment.get(name, "")
    return Path(text) if text else None
