"""What a reader of a comparison must know before believing it, one function per trap."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from normlens.comparison.headlines import incomparable, models_of, provenance_of
from normlens.comparison.lineage import Relation, families, relations
from normlens.results import Result


@dataclass(frozen=True)
class Caveat:
    """One trap a comparison is in.

    Attributes:
        name: of the trap.
        text: one or two sentences for the reader.
        serious: true where something is missing or wrong, false where it is a limit that
            every comparison of this type has.
    """

    name: str
    text: str
    serious: bool


@dataclass(frozen=True)
class Setting:
    """The compared models and what is known about them."""

    models: tuple[str, ...]
    provenance: Mapping[str, Mapping[str, Any]]
    related: tuple[Relation, ...]

    def of_kind(self, *kinds: str) -> list[str]:
        """Models whose provenance gives one of the kinds."""
        return [m for m in self.models if self.about(m).get("kind") in kinds]

    def about(self, model: str) -> Mapping[str, Any]:
        """Provenance of a model, empty when there is none."""
        return self.provenance.get(model, {})


def controls(setting: Setting) -> list[Caveat]:
    """A scale-free model needs a vanilla and an auxiliary-loss control of its own ancestor."""
    found = []
    for model in setting.of_kind("scale_free", "mixed"):
        ancestor = setting.about(model).get("ancestor")
        arms = [
            other
            for other in setting.of_kind("live")
            if ancestor and setting.about(other).get("ancestor") == ancestor
        ]
        if not arms:
            text = (
                f"{model} is compared without a control: no model here was fine-tuned from the "
                "same ancestor with its norms kept, so a difference may come from the "
                "fine-tuning alone."
            )
        elif len(arms) == 1:
            text = (
                f"{model} has one control, {arms[0]}. Removal and the auxiliary scale loss can "
                "only be told apart with two: fine-tuning alone, and fine-tuning with that loss."
            )
        else:
            continue
        found.append(Caveat("controls", text, serious=True))
    return found


def lineage(setting: Setting) -> list[Caveat]:
    """Head 3 against head 3 means something only within a lineage."""
    groups = families(setting.models, setting.related)
    if len(groups) < 2:
        return []
    text = (
        "Not all models are known to descend from one another ("
        + " | ".join(", ".join(group) for group in groups)
        + "). Between unrelated models the same head, neuron or dimension index means nothing: "
        "compare distributions only."
    )
    return [Caveat("lineage", text, serious=True)]


def same_tokens(setting: Setting) -> list[Caveat]:
    """Numbers per token are subtracted only where the tokens are the same."""
    reference, *others = setting.models
    found = []
    for model in others:
        reason = incomparable(setting.about(reference), setting.about(model))
        if reason:
            text = (
                f"No differences are given between {model} and {reference}, because {reason}: "
                "a nat per token of one is not a nat per token of the other."
            )
            found.append(Caveat("same tokens", text, serious=True))
    return found


def same_precision(setting: Setting) -> list[Caveat]:
    """Models analysed in different dtypes differ by rounding too."""
    dtypes = {m: setting.about(m)["dtype"] for m in setting.models if "dtype" in setting.about(m)}
    if len(set(dtypes.values())) < 2:
        return []
    listed = ", ".join(f"{model}: {dtype}" for model, dtype in dtypes.items())
    text = f"The models are analysed in different precisions ({listed})."
    return [Caveat("precision", text, serious=True)]


def quantised_origin(setting: Setting) -> list[Caveat]:
    """Weights that were once quantised describe the quantiser as well."""
    return [
        Caveat(
            "quantised origin",
            f"{model} was dequantised from {origin}: what its weights show about outliers or "
            "rounding describes the quantiser too.",
            serious=True,
        )
        for model in setting.models
        if (origin := setting.about(model).get("quantised_from"))
    ]


def edited(setting: Setting) -> list[Caveat]:
    """An edited model is not the one its name says."""
    return [
        Caveat("edits", f"{model} was edited after opening: {'; '.join(map(str, edits))}.", True)
        for model in setting.models
        if (edits := setting.about(model).get("edits"))
    ]


def unverified_sites(setting: Setting) -> list[Caveat]:
    """A site that does not compute what its spec says has no trustworthy scale."""
    found = []
    for model in setting.models:
        failed = [s["label"] for s in setting.about(model).get("sites", ()) if not s["verified"]]
        if failed:
            text = f"{model}: the output of {', '.join(failed)} is not what the norm's spec gives."
            found.append(Caveat("unverified sites", text, serious=True))
    return found


def training_variance(setting: Setting) -> list[Caveat]:
    """Document intervals say nothing about another training run."""
    del setting
    text = (
        "Intervals resample documents. They leave out how much another training seed would "
        "change: a claim about a training scheme needs at least three seeds of each."
    )
    return [Caveat("training variance", text, serious=False)]


def scale_free_is_not_norm_free(setting: Setting) -> list[Caveat]:
    """A fixed scale leaves the rest of the norm in place."""
    names = setting.of_kind("scale_free", "mixed")
    if not names:
        return []
    text = (
        f"Scale-free does not mean without norms: in {', '.join(names)} centring, gain and bias "
        "remain and only the division by each token's own scale is gone."
    )
    return [Caveat("scale-free", text, serious=False)]


def gauge(setting: Setting) -> list[Caveat]:
    """Residual units of a model with live norms are arbitrary."""
    if not setting.of_kind("live"):
        return []
    text = (
        "The size of the residual stream is arbitrary in a model whose norms divide it out, and "
        "not in a scale-free one. Compare ratios (first token to the others, site to site, "
        "spread), not residual units."
    )
    return [Caveat("residual gauge", text, serious=False)]


COMPARING: tuple[Callable[[Setting], list[Caveat]], ...] = (
    controls,
    lineage,
    same_tokens,
    same_precision,
)
ALWAYS: tuple[Callable[[Setting], list[Caveat]], ...] = (
    quantised_origin,
    edited,
    unverified_sites,
    training_variance,
    scale_free_is_not_norm_free,
)


def caveats(
    results: Sequence[Result], related: Sequence[Relation] | None = None
) -> tuple[Caveat, ...]:
    """Every trap the comparison is in, serious ones first.

    Args:
        results: of any analyses.
        related: verified pairs; None takes them from provenance.
    """
    models, provenance = models_of(results), provenance_of(results)
    pairs = relations(models, provenance) if related is None else tuple(related)
    setting = Setting(models, provenance, pairs)
    traps = (*COMPARING, *ALWAYS, gauge) if len(models) > 1 else ALWAYS
    found = [caveat for trap in traps for caveat in trap(setting)]
    return tuple(sorted(found, key=lambda caveat: not caveat.serious))
