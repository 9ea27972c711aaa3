"""The two types of kernel and what passes in and out of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from normlens.capture.points import Point
from normlens.capture.state import State
from normlens.models.components_scaling import Scaling
from normlens.models.components_view import PostAttention
from normlens.models.lens import Lens, NormSite
from normlens.results import Check, Headline
from normlens.text.sequences import Batch, Sequences


@dataclass(frozen=True)
class Components:
    """What a pass over the component view hands to kernels.

    Attributes:
        embeddings: name -> ``[batch pos d_model]`` (embed, pos_embed): they sum to the
            residual before block 0.
        z: per layer, input of the attention output projection, ``[batch pos head*d_head]``;
            it contains the value bias.
        mlp: per layer, what the MLP adds to the residual, its bias, the norm after it and a
            branch scale included, ``[batch pos d_model]``.
        residual: input of the final norm, ``[batch pos d_model]``.
        attention_scale: of each layer with a norm after attention, that norm's scale,
            ``[batch pos]``, float32 or wider.
        raw_logits: output of the unembedding where the model scales or caps it, else None:
            then the model's logits are the raw ones.
    """

    embeddings: Mapping[str, Float[Tensor, "batch pos d_model"]]
    z: Sequence[Float[Tensor, "batch pos width"]]
    mlp: Sequence[Float[Tensor, "batch pos d_model"]]
    residual: Float[Tensor, "batch pos d_model"]
    attention_scale: Mapping[int, Float[Tensor, "batch pos"]] = field(default_factory=dict)
    raw_logits: Float[Tensor, "batch pos vocab"] | None = None


@dataclass(frozen=True)
class ComponentWeights:
    """The linear maps behind :class:`Components`, nothing folded.

    Attributes:
        w_o: per layer ``[head d_head d_model]``.
        b_o: per layer ``[d_model]`` or None.
        w_u: ``[d_model vocab]``; b_u: ``[vocab]`` or None.
        gamma, beta: effective gain and bias of the final norm, ``[d_model]``, or None.
        final: site of the final norm.
        post_attention: by layer, the norm after attention; a layer without one has none.
        scaling: what attention is multiplied by before it is added to the residual, and how
            the model's logits follow from the raw ones.
    """

    w_o: Sequence[Float[Tensor, "head d_head d_model"]]
    b_o: Sequence[Tensor | None]
    w_u: Float[Tensor, "d_model vocab"]
    b_u: Tensor | None
    gamma: Tensor | None
    beta: Tensor | None
    final: NormSite
    post_attention: Mapping[int, PostAttention] = field(default_factory=dict)
    scaling: Scaling = field(default_factory=Scaling)


@dataclass(frozen=True)
class Observed:
    """One forward pass, reduced to what was asked for.

    Attributes:
        norm_moments: site label -> ``[2 batch pos]``, or ``[2 batch pos head]`` where the
            norm sees each head by itself: mean and biased variance of the norm's input
            over its width, float32 or wider.
        norm_scales: likewise one value per token (and head), of every site whose live scale
            is no function of ``mean(centred**2)`` (L1, CRMS): that scale.
        logits: ``[batch pos vocab]`` in the model's dtype, or None.
        components: or None.
        reduced: point name -> what the analysis's ``reduce`` returned there.
    """

    norm_moments: Mapping[str, Float[Tensor, "2 batch pos *head"]] = field(default_factory=dict)
    norm_scales: Mapping[str, Float[Tensor, "batch pos *head"]] = field(default_factory=dict)
    logits: Tensor | None = None
    components: Components | None = None
    reduced: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)


@dataclass(frozen=True)
class Context:
    """What stays the same during a pass.

    Attributes:
        lens: the model.
        parameters: the analysis's parameter object.
        sequences: the corpus.
        replicates: number of bootstrap replicates.
        weights: component weights where the analysis needs components.
        reference: the model to compare with, where the analysis compares.
    """

    lens: Lens
    parameters: Any
    sequences: Sequences
    replicates: int
    weights: ComponentWeights | None = None
    reference: Lens | None = None


@dataclass(frozen=True)
class Finding:
    """What a kernel hands to the runner: tables without the model column.

    ``replicates`` maps a headline's name to its bootstrap replicates, for paired
    differences between models.
    """

    tables: Mapping[str, pd.DataFrame]
    headline: tuple[Headline, ...] = ()
    checks: tuple[Check, ...] = ()
    warnings: tuple[str, ...] = ()
    replicates: Mapping[str, torch.Tensor] = field(default_factory=dict)


Reduce = Callable[[Point, Any, Batch, Context], Mapping[str, Tensor]]
"""``reduce(point, value, batch, context)``: what to keep of an activation, by name.

``value`` is the activation, which must neither be changed nor kept: a tensor
``[batch pos d]``, or an :class:`~normlens.capture.attention.AttentionChunk`, whose
reductions have the chunk's ``[rows head ...]`` as first axes and are joined along both."""


def keep_nothing(point: Point, value: Any, batch: Batch, context: Context) -> Mapping[str, Tensor]:
    """The reduction of an analysis that asks for no activations."""
    return {}


@dataclass(frozen=True)
class Streaming:
    """An analysis that reads a shared forward pass.

    ``init`` declares the statistics and raises NotApplicable where the analysis does not
    apply; ``update`` reduces one batch into them; ``finish`` turns them into tables.
    ``reduce`` is called inside the pass with every activation that the analysis's needs
    name, so that none has to be kept; ``update`` finds what it returned in
    ``observed.reduced``.
    """

    init: Callable[[Context], State]
    update: Callable[[State, Batch, Observed, Context], None]
    finish: Callable[[State, Context], Finding]
    reduce: Reduce = keep_nothing


MapShards = Callable[[str, Sequences, Callable[[Batch], State]], State]
"""``map_shards(label, sequences, compute)``: apply ``compute`` to every batch, store each
shard under ``label``, reduce in order, resume."""


@dataclass(frozen=True)
class Procedure:
    """An analysis with passes and interventions of its own.

    ``run`` gets ``map_shards``, which batches, stores, resumes and reports progress.
    """

    run: Callable[[Context, MapShards], Finding]
