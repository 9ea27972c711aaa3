"""The composed decoder as a Hugging Face model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import DynamicCache, GenerationMixin, PreTrainedModel
from transformers import initialization as init
from transformers.cache_utils import Cache
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.utils.generic import can_return_tuple
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from normlens.decoder.attention_weights import AttentionNormalizer
from normlens.decoder.block import Block, maker
from normlens.decoder.combine import LearnedScale
from normlens.decoder.config import DecoderConfig
from normlens.decoder.initialise import INITIALISATIONS, initialise_linear
from normlens.decoder.through import through


class DecoderPreTrainedModel(PreTrainedModel):
    """What transformers has to know about the decoder."""

    config_class = DecoderConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["Block"]  # noqa: RUF012 - read by transformers
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_attention_backend = True
    _can_record_outputs = {  # noqa: RUF012 - read by transformers
        "hidden_states": Block,
        "attentions": OutputRecorder(AttentionNormalizer, index=1),
    }

    def _initialize_weights(self, module: nn.Module, is_custom_code: bool = False) -> None:
        """Never as custom code, of which transformers skips modules without own parameters."""
        super()._initialize_weights(module, is_custom_code=False)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        config: Any = self.config
        if isinstance(module, nn.Embedding):
            std = INITIALISATIONS[config.initialisation].embedding(config)
            init.normal_(module.weight, std=std)
        elif isinstance(module, Block):
            for branch in (module.attn, module.mlp):
                for name, linear in branch.body.named_children():
                    if isinstance(linear, nn.Linear):
                        initialise_linear(config, linear, name)
                if config.scheme.depth_scaled and branch.post_norm is not None:
                    gain = branch.post_norm.get_parameter("weight")
                    init.copy_(gain, gain.detach() * config.num_hidden_layers**-0.5)
        elif isinstance(module, DecoderForCausalLM):
            std = INITIALISATIONS[config.initialisation].embedding(config)
            init.normal_(module.lm_head.weight, std=std)
        elif isinstance(module, LlamaRotaryEmbedding):
            super()._init_weights(module)


class DecoderModel(DecoderPreTrainedModel):
    """Embeddings, blocks and the final norm."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        scheme, width = config.scheme, config.hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, width)
        self.embed_positions = self.rotary = None
        if config.positions == "learned":
            self.embed_positions = nn.Embedding(config.max_position_embeddings, width)
        else:
            like_llama: Any = config
            self.rotary = LlamaRotaryEmbedding(like_llama)
        self.embed_scale = None
        if config.embedding_scale is not None:
            self.embed_scale = LearnedScale(None, config.embedding_scale)
        embedding = config.embedding_norm or (config.norm if scheme.embedding else None)
        self.embed_norm = maker(embedding)(width) if embedding else None
        self.layers = nn.ModuleList(Block(config, i) for i in range(config.num_hidden_layers))
        final: Any = config.final_norm
        self.final_norm = maker(final)(width) if final else None
        self.gradient_checkpointing = False
        self.post_init()

    @capture_outputs
    def forward(
        self,
        input_ids: Int[Tensor, "batch pos"] | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Int[Tensor, "#batch pos"] | None = None,
        cache: Cache | None = None,
        inputs_embeds: Float[Tensor, "batch pos d_model"] | None = None,
        use_cache: bool | None = None,
        **options: Any,
    ) -> BaseModelOutputWithPast:
        """The stream after the final norm; arguments as for any causal LM of transformers."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if use_cache and cache is None:
            cache = DynamicCache(config=self.config)
        if position_ids is None:
            seen = cache.get_seq_length() if cache is not None else 0
            position_ids = torch.arange(seen, seen + x.shape[1], device=x.device)[None]
        mask = create_causal_mask(
            config=self.config,
            inputs_embeds=x,
            attention_mask=attention_mask,
            cache=cache,
            position_ids=position_ids,
        )
        rotary = None if self.rotary is None else self.rotary(x, position_ids=position_ids)
        if self.embed_positions is not None:
            x = x + self.embed_positions(position_ids)
        x = through(self.embed_norm, through(self.embed_scale, x))
        for block in self.layers:
            x = block(x, mask=mask, rotary=rotary, cache=cache, **options)
        return BaseModelOutputWithPast(last_hidden_state=through(self.final_norm, x), cache=cache)


class DecoderForCausalLM(DecoderPreTrainedModel, GenerationMixin):
    """The decoder with its unembedding."""

    _tied_weights_keys = {  # noqa: RUF012 - read by transformers
        "lm_head.weight": "model.embed_tokens.weight"
    }

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        self.model = DecoderModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.logit_scale = None
        if config.scheme.hyperspherical:
            self.logit_scale = LearnedScale(config.vocab_size, 1.0, config.hidden_size**-0.5)
        self.post_init()
        self.after_step()

    @can_return_tuple
    def forward(
        self,
        input_ids: Int[Tensor, "batch pos"] | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Int[Tensor, "#batch pos"] | None = None,
        cache: Cache | None = None,
        inputs_embeds: Float[Tensor, "batch pos d_model"] | None = None,
        labels: Int[Tensor, "batch pos"] | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **options: Any,
    ) -> CausalLMOutputWithPast:
        """Logits ``[batch pos vocab]`` and, with labels, the mean loss in nats/token."""
        out = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            cache=cache,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **options,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = through(self.logit_scale, self.lm_head(out.last_hidden_state[:, kept]))
        loss = None
        if labels is not None:
            loss = self.loss_function(
                logits=logits, labels=labels, vocab_size=self.config.vocab_size, **options
            )
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            cache=out.cache,
            hidden_states=out.hidden_states,
            attentions=out.attentions,
        )

    @torch.no_grad()
    def after_step(self) -> None:
        """Give every weight vector unit length, where the placement asks for it (nGPT).

        To be called after each step of an optimizer; does nothing elsewhere. Source:
        2410.01131, section 2.6.
        """
        if self.config.scheme.hyperspherical:
            for weight, axis in self._weight_vectors():
                length = torch.linalg.vector_norm(weight, dim=axis, keepdim=True)
                weight.div_(length.clamp_min(torch.finfo(weight.dtype).tiny))

    def _weight_vectors(self) -> Iterator[tuple[Tensor, int]]:
        """Weights with the axis that the stream is contracted with."""
        yield self.model.embed_tokens.weight, 1
        if self.lm_head.weight is not self.model.embed_tokens.weight:
            yield self.lm_head.weight, 1
        for block in self.model.layers:
            for branch in block.children():
                for name, linear in branch.get_submodule("body").named_children():
                    if isinstance(linear, nn.Linear):
                        yield linear.weight, 0 if name in ("o_proj", "down_proj") else 1
