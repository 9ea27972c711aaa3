"""Attention as a pass meets it: logits and probabilities of some heads of some sequences.

1. A hook before and one after the attention module of every block say which block runs.
2. Meanwhile every torch call passes a :class:`torch.overrides.TorchFunctionMode`, which sees
   the one that turns queries and keys, or logits, into attention: the fused kernel of
   ``scaled_dot_product_attention``, a softmax where a model writes attention out, or one of the
   composed decoder's attention normalizers. The call itself is made as it would be, so the
   model computes the same bits as without.
3. From the call's arguments the logits are computed again (or taken, where they are its
   arguments) for some rows and heads at a time, never for some of the queries, and handed to
   ``watch`` with the weights that the model makes of them.

A mode belongs to one thread and ends with its block: neither the model, its config nor
transformers is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.overrides import TorchFunctionMode

from normlens.capture.attention_source import Explicit, Fused, Source
from normlens.capture.points import Point
from normlens.capture.tree import Tree
from normlens.catalog.declaration import Need
from normlens.decoder.attention_weights import relu_mean, softplus_l1
from normlens.errors import HookMismatch
from normlens.hooks import Hook, hooked
from normlens.models.families import family_of

CHUNK_BYTES_CPU = 2**22
"""Logits of a chunk on a CPU: small enough for its caches, large enough for few calls."""

CHUNK_BYTES_ACCELERATOR = 2**26

SOFTMAX = (F.softmax, torch.softmax, Tensor.softmax)

OTHER_RULES = (softplus_l1, relu_mean)

Watch = Callable[[Point, Any], Mapping[str, Tensor]]


@dataclass(frozen=True, eq=False)
class AttentionChunk:
    """Every query and key of one layer, for some sequences and some heads.

    Attributes:
        layer: block index.
        rows: which sequences of the batch.
        heads: which query heads.
        logits: ``[row head query key]``: scaled (and soft-capped) dot products, at least
            float32; ``-inf`` where the key is not visible.
        probabilities: the weights that the model makes of them; 0 where the key is not
            visible. Softmax leaves NaN in the row of a query that sees no key. Weights of
            ReLU attention need not add up to 1.
        softmax: whether they are the softmax of the logits.
        visible: ``[row 1 query key]``.
        causal: whether each query is known to see itself and everything before it, and no more.
        keys: number of visible keys, ``[row 1 query]``.
        query: ``[row head query d_head]`` after positions have been applied, at least
            float32; None where the model writes attention out.
        key: ``[row head key d_head]`` likewise, the shared ones repeated.
        residual: ``[row head]``, how far the last query's probabilities are from what the
            model computed: ``max|p v - output| / max|v|`` of its fused kernel, or
            ``max|p - p_model|`` of the softmax it writes out.
    """

    layer: int
    rows: slice
    heads: slice
    logits: Float[Tensor, "row head query key"]
    probabilities: Float[Tensor, "row head query key"]
    softmax: bool
    visible: Bool[Tensor, "row one query key"]
    causal: bool
    keys: Int[Tensor, "row one query"]
    query: Float[Tensor, "row head query d_head"] | None
    key: Float[Tensor, "row head key d_head"] | None
    residual: Float[Tensor, "row head"]


def attention_points(layers: int) -> tuple[Point, ...]:
    """The attention of every block of a model with that many blocks."""
    return tuple(Point(Need.ATTENTION, i, f"attention.{i}") for i in range(layers))


@contextmanager
def recording_attention(
    tree: Tree, watch: Watch, into: dict[str, Mapping[str, Tensor]]
) -> Iterator[None]:
    """Hand every layer's attention to ``watch`` while the block runs.

    Args:
        tree: what runs; nothing in it is changed.
        watch: called with the layer's point and an :class:`AttentionChunk`; the tensors it
            returns have the chunk's ``[row head ...]`` as first axes.
        into: filled with them, joined along both axes, under the name of each point.

    Raises:
        HookMismatch: the attention of a block did not run exactly once, or is neither
            ``scaled_dot_product_attention`` nor a softmax, or a normalizer of the composed
            decoder, over ``[batch head query key]``.
    """
    attention = family_of(tree.lens.model).attention
    recorder = _Recorder(tree.lens.model.dtype, watch, into)
    hooks: list[Hook] = []
    for point, block in zip(attention_points(len(tree.blocks)), tree.blocks, strict=True):
        module = block.get_submodule(attention)
        hooks.append(Hook(module, "input", _Enter(recorder, point), point.name))
        hooks.append(Hook(module, "output", _Leave(recorder), point.name))
    with hooked(tree.root, hooks), recorder:
        yield


class _Recorder(TorchFunctionMode):
    """Sees every torch call of its thread, and records the attention among them."""

    def __init__(
        self, dtype: torch.dtype, watch: Watch, into: dict[str, Mapping[str, Tensor]]
    ) -> None:
        super().__init__()
        self.point: Point | None = None
        self._dtype = dtype
        self._watch = watch
        self._into = into

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        if self.point is not None:
            if func is F.scaled_dot_product_attention:
                self._record(self.point, Fused.of_call(output, *args, **kwargs))
            elif func in SOFTMAX and args[0].ndim == 4:
                self._record(self.point, Explicit.of_call(output, args[0], self._dtype))
            elif func in OTHER_RULES:
                self._record(self.point, Explicit.of_rule(func, output, *args, **kwargs))
        return output

    def leave(self) -> None:
        """The attention of the current block is done."""
        assert self.point is not None
        if self.point.name not in self._into:
            raise HookMismatch(
                f"no attention was seen in block {self.point.layer}: it calls neither "
                "scaled_dot_product_attention nor a softmax over [batch head query key]"
            )
        self.point = None

    def _record(self, point: Point, source: Source) -> None:
        if point.name in self._into:
            raise HookMismatch(f"block {point.layer} computes attention more than once")
        self._into[point.name] = joined(
            [self._watch(point, chunk) for chunk in line] for line in chunks(point.layer, source)
        )


def chunks(layer: int | None, source: Source) -> Iterator[Iterator[AttentionChunk]]:
    """The attention of one layer in pieces: for some rows after another, some heads."""
    assert layer is not None
    rows, heads, queries, keys = source.shape
    per_row, per_head = chunk_size(rows, heads, queries * keys, source.visible(slice(0, 1)))
    for low in range(0, rows, per_row):
        some = slice(low, min(low + per_row, rows))
        yield (
            _chunk(layer, source, some, slice(first, min(first + per_head, heads)))
            for first in range(0, heads, per_head)
        )


def chunk_size(rows: int, heads: int, pairs: int, on: Tensor) -> tuple[int, int]:
    """Rows and heads of a chunk: whole rows where they fit, else some heads of one row."""
    budget = CHUNK_BYTES_CPU if on.device.type == "cpu" else CHUNK_BYTES_ACCELERATOR
    matrices = max(1, budget // (4 * pairs))
    return min(rows, max(1, matrices // heads)), min(heads, matrices)


def _chunk(layer: int, source: Source, rows: slice, heads: slice) -> AttentionChunk:
    logits = source.logits(rows, heads)
    probabilities = source.weights(rows, logits)
    query, key = source.vectors(rows, heads) or (None, None)
    return AttentionChunk(
        layer=layer,
        rows=rows,
        heads=heads,
        logits=logits,
        probabilities=probabilities,
        softmax=source.softmax,
        visible=source.visible(rows),
        causal=source.causal,
        keys=source.keys_seen(rows),
        query=query,
        key=key,
        residual=source.residual(rows, heads, probabilities),
    )


def joined(lines: Iterator[list[Mapping[str, Tensor]]]) -> dict[str, Tensor]:
    """Reductions of chunks, joined along heads within a line and then along rows."""
    whole = [{name: torch.cat([m[name] for m in line], 1) for name in line[0]} for line in lines]
    return {name: torch.cat([line[name] for line in whole]) for name in whole[0]}


@dataclass(frozen=True)
class _Enter:
    recorder: _Recorder
    point: Point

    def __call__(self, _x: Tensor) -> None:
        self.recorder.point = self.point


@dataclass(frozen=True)
class _Leave:
    recorder: _Recorder

    def __call__(self, _x: Tensor) -> None:
        self.recorder.leave()
