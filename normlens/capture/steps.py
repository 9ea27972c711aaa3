"""What one block does to the residual stream, seen as a whole: before, branches, after.

Quantities of two points of the stream, such as the angle between them, need both at once.
The input of one block is kept until its output is there, and no longer: the pass holds the
activations of a single block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from jaxtyping import Float
from torch import Tensor

from normlens.capture.points import Point
from normlens.capture.tree import Tree
from normlens.catalog.declaration import Need
from normlens.hooks import Hook


@dataclass(frozen=True, eq=False)
class Step:
    """One block's input and output and, for ``BRANCH_STEPS``, what was added in between.

    ``after = before + s * (attention + mlp)``, with the model's branch scale ``s``, 1 in
    most. ``attention`` and ``mlp`` are None for ``STEPS``.
    """

    before: Float[Tensor, "batch pos d_model"]
    after: Float[Tensor, "batch pos d_model"]
    attention: Float[Tensor, "batch pos d_model"] | None = None
    mlp: Float[Tensor, "batch pos d_model"] | None = None


def step_hooks(
    tree: Tree,
    need: Need,
    watch: Callable[[Point, Step], Mapping[str, Tensor]],
    into: dict[str, Mapping[str, Tensor]],
) -> Iterator[Hook]:
    """Hooks that hand the step of every block to ``watch``; none for other needs.

    Args:
        tree: what runs; the component view for ``BRANCH_STEPS``.
        need: ``STEPS`` or ``BRANCH_STEPS``; the points are named ``steps.3``,
            ``branch_steps.3``.
        watch: called when the block's output is there.
        into: takes what it returns, by the point's name.
    """
    if need not in (Need.STEPS, Need.BRANCH_STEPS):
        return
    for layer, block in enumerate(tree.blocks):
        point = Point(need, layer, f"{need.value}.{layer}")
        parts: dict[str, Tensor] = {}
        yield Hook(block, "input", _Hold(parts, "before"), f"{point.name} before")
        if need is Need.BRANCH_STEPS:
            assert tree.view is not None, "branches are found in the component view"
            found = tree.view.layers[layer]
            yield Hook(found.attention_output, "output", _Hold(parts, "attention"), "attention")
            yield Hook(found.mlp_output, "output", _Hold(parts, "mlp"), "mlp")
        yield Hook(block, "output", _Finish(point, parts, watch, into), f"{point.name} after")


@dataclass(frozen=True)
class _Hold:
    into: dict[str, Tensor]
    name: str

    def __call__(self, x: Tensor) -> None:
        # A copy, since some blocks add to their branches in place.
        self.into[self.name] = x.clone()


@dataclass(frozen=True)
class _Finish:
    point: Point
    parts: dict[str, Tensor]
    watch: Callable[[Point, Step], Mapping[str, Tensor]]
    into: dict[str, Mapping[str, Tensor]] = field(repr=False)

    def __call__(self, x: Tensor) -> None:
        # Some linears see the tokens of all sequences along one axis.
        step = Step(after=x, **{name: part.view_as(x) for name, part in self.parts.items()})
        self.parts.clear()
        self.into[self.point.name] = self.watch(self.point, step)
