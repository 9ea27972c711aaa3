"""Stored results of a choice of models and text, found without torch.

Rule. A result is shown for a model only if it is known to be of the weights that lie there
now. What a source opens as (weights, config, tokenizer and edits, by digest) is noted when it
is opened (:mod:`normlens.records`); the note holds while the files it was read from are the
same: equal size and times of change, or equal content for models up to 64 MB, so that notes
travel with the bundled results. A model that was trained again in place therefore has no
results until it is opened again. A result then matches if its provenance has that model's
digests and edits, device, analysis version, parameters and schema, and

* on a corpus: the token digest that is noted for the text's present content, its number of
  sequences, context and BOS policy under the model's tokenizer;
* on a prompt: the prompt, which is one of the parameters, the BOS policy and the tokenizer;
* for analyses that compare: the digest and edits of the reference.

Versions of torch and other libraries do not enter; they are in the provenance for display.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from normlens import catalog
from normlens.catalog import Analysis
from normlens.records import ModelRecord, Records
from normlens.results import Result, TableSchema, concat
from normlens.store import renamed
from normlens.workbench.choices import BosChoice, CorpusChoice, ModelChoice, distinct_names
from normlens.workbench.index import Entry, ResultIndex
from normlens.workbench.known import known_corpus, known_model
from normlens.workbench.parameters import as_recorded, chosen
from normlens.workbench.sources import Sources

COLUMNS = ("analysis", "model", "corpus", "sequences", "created", "where")
UNKNOWN_MODEL = "not opened yet, or its files changed since"
NO_RESULT = "not run yet on this text with these parameters"


@dataclass(frozen=True)
class Found:
    """What is stored for a choice.

    Attributes:
        result: the models that have a result, side by side in slot order; None without any.
        missing: the models that have none, in slot order.
        reasons: for each of these, why.
        paths: directories of the results, in slot order.
    """

    result: Result | None
    missing: tuple[ModelChoice, ...]
    reasons: tuple[str, ...] = ()
    paths: tuple[Path, ...] = ()


class StoredResults:
    """The results below some directories, searched in order.

    Args:
        roots: the user's store first, the results that come with normlens last.
        sources: what ids mean; without it, ids of known models and paths.
    """

    def __init__(self, roots: Sequence[Path], sources: Sources | None = None) -> None:
        self.sources = sources or Sources()
        self._indexes = tuple(ResultIndex(root) for root in roots)
        self._records = tuple(Records(root) for root in roots)

    def find(
        self,
        analysis: str,
        models: Sequence[ModelChoice],
        corpus: CorpusChoice | None,
        *,
        parameters: Mapping[str, Any] | None = None,
        reference: ModelChoice | None = None,
        bos: BosChoice = "prepend",
    ) -> Found:
        """The newest stored result of every model, side by side.

        Args:
            analysis: registry name.
            models: the slots; the first is the reference.
            corpus: what was read; None for analyses of a prompt.
            parameters: of the analysis; fields that are left out take their defaults.
            reference: what analyses that compare set the models against, the first of
                ``models`` where it is not given.
            bos: BOS policy of a prompt.

        Raises:
            UnknownName: no such analysis.
            UsageError: bad parameters.
            BadText: there is no such text.
            LoadError: a stored result is damaged.
        """
        declared = catalog.get(analysis)
        names = distinct_names(models)
        known = [known_model(choice, self.sources, self._records) for choice in models]
        other = None
        if declared.compares and models:
            other = known_model(reference, self.sources, self._records) if reference else known[0]
        wanted = _Wanted(declared, as_recorded(chosen(declared, parameters)), other, bos)
        results: list[tuple[Result, ModelRecord]] = []
        missing: list[tuple[ModelChoice, str]] = []
        paths: list[Path] = []
        for choice, name, record in zip(models, names, known, strict=True):
            found = None if record is None else self._newest(wanted, choice, record, corpus)
            if found is None or record is None:
                missing.append((choice, UNKNOWN_MODEL if record is None else NO_RESULT))
                continue
            path, result = found
            paths.append(path)
            if other is not None:
                result = _against(result, reference.name if reference else names[0])
            results.append((renamed(result, name), record))
        return Found(
            self._side_by_side(results),
            tuple(choice for choice, _ in missing),
            tuple(reason for _, reason in missing),
            tuple(paths),
        )

    def available(self) -> pd.DataFrame:
        """Every stored result: analysis, model, corpus, sequences, created (UTC), where."""
        rows = [
            (
                entry.analysis,
                entry.model,
                entry.provenance.get("corpus", ""),
                entry.provenance.get("sequences", 0),
                entry.created,
                str(entry.path),
            )
            for index in self._indexes
            for entry in index.entries()
        ]
        return pd.DataFrame(rows, columns=list(COLUMNS))

    def weight_cosine(self, a: ModelRecord, b: ModelRecord) -> float | None:
        """The weight cosine of two models, None where it was never measured."""
        if a.weights_sha256 == b.weights_sha256:
            return 1.0
        found = (kept.cosine(a.weights_sha256, b.weights_sha256) for kept in self._records)
        return next((cosine for cosine in found if cosine is not None), None)

    def _newest(
        self,
        wanted: _Wanted,
        choice: ModelChoice,
        record: ModelRecord,
        corpus: CorpusChoice | None,
    ) -> tuple[Path, Result] | None:
        tokens = None
        if wanted.analysis.runs_on == "corpus":
            if corpus is None:
                return None
            tokens = known_corpus(corpus, record, self._records)
            if tokens is None:
                return None
        for index in self._indexes:
            for entry in index.entries():
                if wanted.matches(entry, choice, record, tokens):
                    result = wanted.as_declared(index.load(entry))
                    if result is not None:
                        return entry.path, result
        return None

    def _side_by_side(self, results: Sequence[tuple[Result, ModelRecord]]) -> Result | None:
        if not results:
            return None
        _, first = results[0]
        related = [
            _related(result, self.weight_cosine(first, record)) for result, record in results
        ]
        return concat(related)


@dataclass(frozen=True)
class _Wanted:
    analysis: Analysis
    parameters: Mapping[str, Any]
    reference: ModelRecord | None
    bos: BosChoice

    def matches(
        self, entry: Entry, choice: ModelChoice, record: ModelRecord, tokens: str | None
    ) -> bool:
        """Whether an entry is the wanted analysis of a model; ``tokens`` None for a prompt."""
        if entry.analysis != self.analysis.name:
            return False
        facts = {
            "weights_sha256": record.weights_sha256,
            "config_sha256": record.config_sha256,
            "tokenizer_sha256": record.tokenizer_sha256,
            "edits": list(record.edits),
            "analysis_version": self.analysis.version,
            "parameters": self.parameters,
        }
        facts |= {"bos": self.bos} if tokens is None else {"corpus_sha256": tokens}
        if self.analysis.compares:
            if self.reference is None:
                return False
            facts["reference_sha256"] = self.reference.weights_sha256
            facts["reference_edits"] = list(self.reference.edits)
        about = entry.provenance
        return _device(about.get("device", "")) == _device(choice.device) and all(
            about.get(name) == value for name, value in facts.items()
        )

    def as_declared(self, result: Result) -> Result | None:
        """The result described as the analysis is today; None where its tables differ.

        Only words may differ: names, dtypes and units of the columns are the same.
        """
        schemas = dict(result.schemas)
        for table in self.analysis.tables:
            stored = schemas.get(table.name)
            if stored is None:
                return None
            today = {column.name: column for column in table.columns}
            columns = tuple(today.get(column.name, column) for column in stored.columns)
            if set(today) - {column.name for column in columns} or any(
                (old.dtype, old.unit) != (new.dtype, new.unit)
                for old, new in zip(stored.columns, columns, strict=True)
            ):
                return None
            schemas[table.name] = TableSchema(table.name, table.doc, columns)
        return dataclasses.replace(result, schemas=schemas)


def _device(name: str) -> str:
    """A device with its index: torch calls ``cuda`` ``cuda:0`` once it holds tensors."""
    return name if ":" in name or name == "cpu" else f"{name}:0"


def _against(result: Result, reference: str) -> Result:
    (model,) = result.models
    origin = {**result.provenance[model], "reference": reference}
    return dataclasses.replace(result, provenance={model: origin})


def _related(result: Result, cosine: float | None) -> Result:
    if cosine is None:
        return result
    (model,) = result.models
    origin = {**result.provenance[model], "weight_cosine_to_reference": cosine}
    return dataclasses.replace(result, provenance={model: origin})
