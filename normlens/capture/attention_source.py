"""Where attention logits come from: the arguments of the call that turns them into weights.

Every kind of call gives, for some sequences of the batch (``rows``) and query heads, the
logits ``[row head query key]`` in a tensor of their own, the weights that the model makes of
them, which keys are visible, the queries and keys where they were handed over, and a
residual: how far the last query's weights are from what the model computed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def hiding(shown: Bool[Tensor, "*shape"], dtype: torch.dtype) -> Float[Tensor, "*shape"]:
    """0 where a key is visible, ``-inf`` where it is not."""
    # Adding this is many times faster than filling by a mask that is broadcast over heads.
    return torch.zeros(shown.shape, dtype=dtype, device=shown.device).masked_fill_(
        ~shown, -torch.inf
    )


@dataclass(frozen=True, eq=False)
class Fused:
    """Attention in one kernel, which takes queries and keys and returns mixed values.

    ``logits = scale * q k^T + bias``, hidden keys at ``-inf``. The residual is
    ``max|p v - output| / max|v|`` over the width of a head.

    Attributes:
        query: ``[row head query d_head]``, after positions have been applied.
        key: ``[row kv_head key d_head]``; value likewise.
        output: what the kernel returned.
        bias: what is added to the logits, at least float32 and ``-inf`` where a key is hidden,
            ``[row or 1, head or 1, query, key]``.
        shown: which keys are visible, ``[row or 1, 1, query, key]``.
        counts: its sum over keys.
        scale: what the dot products are multiplied by.
        causal: whether the kernel was asked for a causal mask and got no other.
    """

    query: Float[Tensor, "row head query d_head"]
    key: Float[Tensor, "row kv_head key d_head"]
    value: Float[Tensor, "row kv_head key d_value"]
    output: Float[Tensor, "row head query d_value"]
    bias: Float[Tensor, "row_or_1 head_or_1 query key"]
    shown: Bool[Tensor, "row_or_1 1 query key"]
    counts: Int[Tensor, "row_or_1 1 query"]
    scale: float
    causal: bool
    softmax = True

    @staticmethod
    def of_call(
        output: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Fused:
        """From the arguments of ``torch.nn.functional.scaled_dot_product_attention``."""
        if key.shape[2] == 1 and query.shape[2] > 1:
            # transformers hands over the grouped heads of a single token as queries.
            query, output = query.flatten(1, 2)[:, :, None], output.flatten(1, 2)[:, :, None]
        wide = torch.promote_types(query.dtype, torch.float32)
        if attn_mask is None:
            shown = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device)
            shown = (shown.tril() if is_causal else shown)[None, None]
            bias = hiding(shown, wide)
        elif attn_mask.dtype == torch.bool:
            shown = attn_mask[:, :1]
            bias = hiding(shown, wide)
        else:
            shown = attn_mask[:, :1] > torch.finfo(attn_mask.dtype).min / 2
            bias = attn_mask.to(wide) + hiding(shown, wide)
        return Fused(
            query=query,
            key=key,
            value=value,
            output=output,
            bias=bias,
            shown=shown,
            counts=shown.sum(-1),
            scale=query.shape[-1] ** -0.5 if scale is None else float(scale),
            causal=is_causal,
        )

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Rows, query heads, queries, keys."""
        rows, heads, queries, _ = self.query.shape
        return rows, heads, queries, self.key.shape[2]

    def visible(self, rows: slice) -> Bool[Tensor, "row 1 query key"]:
        """Which keys each query attends to; a view where all rows are alike."""
        return self.shown.expand(self.shape[0], -1, -1, -1)[rows]

    def keys_seen(self, rows: slice) -> Int[Tensor, "row 1 query"]:
        """Number of visible keys."""
        return self.counts.expand(self.shape[0], -1, -1)[rows]

    def logits(self, rows: slice, heads: slice) -> Float[Tensor, "row head query key"]:
        """At least float32; ``-inf`` where a key is hidden."""
        query, key = self.vectors(rows, heads)
        found = torch.matmul(query * self.scale, key.transpose(-1, -2))
        every = self.bias.expand(self.shape[0], self.shape[1], -1, -1)
        return found.add_(every[rows, heads])

    def weights(
        self, rows: slice, logits: Float[Tensor, "row head query key"]
    ) -> Float[Tensor, "row head query key"]:
        """Softmax of the logits of these rows."""
        return torch.softmax(logits, -1)

    def vectors(self, rows: slice, heads: slice) -> tuple[Tensor, Tensor]:
        """Queries and keys ``[row head pos d_head]``, at least float32."""
        wide = torch.promote_types(self.query.dtype, torch.float32)
        query = self.query[rows, heads].to(wide)
        return query, self._of_heads(self.key, rows, heads).to(wide)

    def residual(
        self, rows: slice, heads: slice, probabilities: Float[Tensor, "row head query key"]
    ) -> Float[Tensor, "row head"]:
        """How far the last query is from what the model computed."""
        value = self._of_heads(self.value, rows, heads).to(probabilities.dtype)
        mixed = torch.einsum("rhk,rhkd->rhd", probabilities[:, :, -1], value)
        off = (mixed - self.output[rows, heads, -1]).abs().amax(-1)
        return off / value.abs().amax((-1, -2)).clamp_min(torch.finfo(value.dtype).tiny)

    def _of_heads(self, shared: Tensor, rows: slice, heads: slice) -> Tensor:
        """The key or value head that each query head reads."""
        group = self.query.shape[1] // shared.shape[1]
        if group == 1:
            return shared[rows, heads]
        index = torch.arange(heads.start, heads.stop, device=shared.device) // group
        return shared[rows].index_select(1, index)


@dataclass(frozen=True, eq=False)
class Explicit:
    """Attention written out: the model's own logits, as it gives them to softmax or another rule.

    Hidden keys are those whose logit is near the lowest number of the model's dtype, which
    is how models that use softmax mask; another rule is told them. The residual is
    ``max|p - p_model|`` over keys.

    Attributes:
        scores: ``[row head query key]`` with masks, biases and caps applied.
        output: the weights the model made of them.
        hidden: ``-inf`` where a key is hidden and 0 elsewhere, at least float32.
        shown: ``[row 1 query key]``.
        counts: its sum over keys.
        rule: makes weights of logits and visible keys; None for softmax.
    """

    scores: Float[Tensor, "row head query key"]
    output: Float[Tensor, "row head query key"]
    hidden: Float[Tensor, "row 1 query key"]
    shown: Bool[Tensor, "row 1 query key"]
    counts: Int[Tensor, "row 1 query"]
    rule: Callable[[Tensor, Tensor], Tensor] | None = None

    @staticmethod
    def of_rule(
        rule: Callable[[Tensor, Tensor], Tensor], output: Tensor, scores: Tensor, visible: Tensor
    ) -> Explicit:
        """From a call of an attention normalizer of :mod:`normlens.decoder`."""
        shown = visible.expand(scores.shape[0], -1, -1, -1)
        wide = torch.promote_types(scores.dtype, torch.float32)
        return Explicit(scores, output, hiding(shown, wide), shown, shown.sum(-1), rule)

    @staticmethod
    def of_call(output: Tensor, scores: Tensor, dtype: torch.dtype) -> Explicit:
        """From a softmax in a model of that dtype."""
        # A head with a real NaN does not say which keys are hidden; any other does.
        shown = (scores > torch.finfo(dtype).min / 2).any(1, keepdim=True)
        wide = torch.promote_types(scores.dtype, torch.float32)
        return Explicit(scores, output, hiding(shown, wide), shown, shown.sum(-1))

    @property
    def softmax(self) -> bool:
        """Whether the weights are the softmax of the logits."""
        return self.rule is None

    @property
    def causal(self) -> bool:
        """Always false: the mask is known from the logits alone."""
        return False

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Rows, query heads, queries, keys."""
        rows, heads, queries, keys = self.scores.shape
        return rows, heads, queries, keys

    def visible(self, rows: slice) -> Bool[Tensor, "row 1 query key"]:
        """Which keys each query attends to; a view where all rows are alike."""
        return self.shown[rows]

    def keys_seen(self, rows: slice) -> Int[Tensor, "row 1 query"]:
        """Number of visible keys."""
        return self.counts[rows]

    def logits(self, rows: slice, heads: slice) -> Float[Tensor, "row head query key"]:
        """At least float32; ``-inf`` where a key is hidden."""
        return self.scores[rows, heads] + self.hidden[rows]

    def weights(
        self, rows: slice, logits: Float[Tensor, "row head query key"]
    ) -> Float[Tensor, "row head query key"]:
        """What the model makes of the logits of these rows."""
        if self.rule is None:
            return torch.softmax(logits, -1)
        return self.rule(logits, self.visible(rows))

    def vectors(self, rows: slice, heads: slice) -> None:
        """None: only their products are handed over."""
        return None

    def residual(
        self, rows: slice, heads: slice, probabilities: Float[Tensor, "row head query key"]
    ) -> Float[Tensor, "row head"]:
        """How far the last query is from what the model computed."""
        return (probabilities[:, :, -1] - self.output[rows, heads, -1]).abs().amax(-1)


Source = Fused | Explicit
"""One call of one layer, from which logits can be had piece by piece."""
