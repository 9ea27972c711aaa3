"""The part of a model that a reader looks at, the same in every figure and table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Selection:
    """A part of a model; None where nothing is chosen.

    Attributes:
        layer: index of the block.
        head: index of the attention head.
        position: of the token in the sequence.
        site: label of a norm, e.g. ``3.pre_mlp``.
        dimension: of the residual stream.
        neuron: of the MLP.
    """

    layer: int | None = None
    head: int | None = None
    position: int | None = None
    site: str | None = None
    dimension: int | None = None
    neuron: int | None = None

    @property
    def chosen(self) -> dict[str, int | str]:
        """The fields that are chosen, by name."""
        fields = {
            "layer": self.layer,
            "head": self.head,
            "position": self.position,
            "site": self.site,
            "dimension": self.dimension,
            "neuron": self.neuron,
        }
        return {name: value for name, value in fields.items() if value is not None}
