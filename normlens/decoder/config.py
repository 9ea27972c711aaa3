"""The configuration of the composed decoder: what ``config.json`` holds."""

from __future__ import annotations

from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from normlens.decoder.attention_weights import NORMALIZERS
from normlens.decoder.initialise import INITIALISATIONS
from normlens.decoder.linear import LINEARS
from normlens.decoder.mlp import is_activation
from normlens.decoder.placement import PLACEMENTS, Placement
from normlens.norms import NormSpec

MODEL_TYPE = "normlens_decoder"


@strict
class DecoderConfig(PreTrainedConfig):
    """Sizes, and which norm stands where.

    Norms are given by the fields of :class:`~normlens.norms.NormSpec` without its width:
    ``{"kind": "layer_norm", "eps": 1e-5, "gain": true, "bias": true}``.

    Attributes:
        norm: every norm of the placement that has no entry of its own below.
        final_norm: the one before the unembedding; None leaves it out, whatever the
            placement, and ``"same"`` takes ``norm``.
        qk_norm: of each head's queries and keys; None leaves it to the placement.
        embedding_norm: on the embeddings; likewise.
        placement: name of a row of :data:`~normlens.decoder.PLACEMENTS`.
        depth_factor: ``inverse_sqrt`` multiplies the output of the norms of block ``l``
            (from 0) by ``1 / sqrt(l + 1)``: those before attention and MLP alone (LayerNorm
            Scaling, 2502.05795).
        attention: how logits become weights: softmax, softplus_l1 or relu.
        attention_scale: what dot products are multiplied by, None for ``1 / sqrt(d_head)``.
        qk_temperature: initial value of a learned factor on the logits, which then replaces
            ``attention_scale`` (QKNorm, 2010.04245, where it starts at ``log2(T^2 - T)`` for
            sequences of length ``T``); None for no such factor.
        positions: learned or rotary.
        activation: a name transformers knows, or learnable_leaky_relu.
        gated: whether the MLP is ``down(act(gate(x)) * up(x))``.
        branch_scale: initial value of a learned factor on each branch, after any norm on its
            output; None for none. One of Fixup's scalars (1901.09321), and with identity
            norms the learned scaling of norm-free models.
        embedding_scale: initial value of a learned factor on the embeddings, positions
            included; None for none. Language models with DyT need one of ``sqrt(hidden_size)``,
            or their first norms see next to nothing (2503.10622, language models).
        linear: plain, weight_norm or weight_conditioning.
        linear_bias: whether linears have biases.
        initialisation: a rule of :mod:`normlens.decoder.initialise`.
        initializer_range: standard deviation of normal initial weights.
    """

    model_type = MODEL_TYPE
    # A runtime checker would bind arguments to the dataclass's signature, which lacks those
    # that transformers adds; the fields are checked by ``strict``.
    __no_type_check__ = True

    vocab_size: int = 4096
    hidden_size: int = 128
    intermediate_size: int | None = None
    num_hidden_layers: int = 6
    num_attention_heads: int = 4
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    max_position_embeddings: int = 128
    norm: dict | None = None
    final_norm: dict | str | None = "same"
    qk_norm: dict | None = None
    embedding_norm: dict | None = None
    placement: str = "pre"
    depth_factor: str = "none"
    attention: str = "softmax"
    attention_scale: float | None = None
    qk_temperature: float | None = None
    positions: str = "learned"
    rope_parameters: dict | None = None
    activation: str = "gelu_pytorch_tanh"
    gated: bool = False
    branch_scale: float | None = None
    embedding_scale: float | None = None
    linear: str = "plain"
    linear_bias: bool = True
    initialisation: str = "gpt2"
    initializer_range: float = 0.02
    tie_word_embeddings: bool = True
    use_cache: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        """Fill in what follows from other fields."""
        if self.intermediate_size is None:
            self.intermediate_size = 4 * self.hidden_size
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads
        if self.head_dim is None:
            self.head_dim = self.hidden_size // self.num_attention_heads
        if self.norm is None:
            self.norm = {"kind": "layer_norm", "eps": 1e-5, "gain": True, "bias": True}
        if self.final_norm == "same":
            self.final_norm = self.norm if self.scheme.final else None
        super().__post_init__(**kwargs)

    @property
    def scheme(self) -> Placement:
        """The row of the placement."""
        return _one_of(PLACEMENTS, "placement", self.placement)

    def validate_architecture(self) -> None:
        """Refuse what cannot be built; called by transformers.

        Raises:
            ValueError: a size or a name does not fit; says which.
        """
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads "
                f"{self.num_attention_heads}"
            )
        for field, known in (
            ("placement", PLACEMENTS),
            ("attention", NORMALIZERS),
            ("linear", LINEARS),
            ("initialisation", INITIALISATIONS),
            ("depth_factor", ("none", "inverse_sqrt")),
            ("positions", ("learned", "rotary")),
        ):
            if getattr(self, field) not in known:
                raise ValueError(
                    f"{field} {getattr(self, field)!r} is unknown; choose one of {', '.join(known)}"
                )
        if not is_activation(self.activation):
            raise ValueError(f"activation {self.activation!r} is not known to transformers")
        for field in ("norm", "final_norm", "qk_norm", "embedding_norm"):
            fields = getattr(self, field)
            if fields is not None:
                NormSpec.of(fields, self.hidden_size)
        if self.scheme.depth_scaled and not NormSpec.of(self.norm or {}, self.hidden_size).gain:
            raise ValueError(
                f"placement {self.placement} starts the gains of its norms small, and a norm of "
                f"kind {(self.norm or {})['kind']} without a gain has none; give it a gain"
            )


def _one_of(known: Any, field: str, name: str) -> Any:
    if name not in known:
        raise ValueError(f"{field} {name!r} is unknown; choose one of {', '.join(known)}")
    return known[name]
