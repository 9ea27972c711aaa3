"""Tiny models seen as components through plain Hugging Face modules.

Hooks are placed by hand, so that what the kernels are tested on does not come from the
component view.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GPT2LMHeadModel, PreTrainedModel, PreTrainedTokenizerBase

from normlens.capture.batches import batches
from normlens.capture.protocol import Components, ComponentWeights, Context, Observed
from normlens.capture.statistics import poisson_weights
from normlens.hooks import Hook, hooked
from normlens.models.build import build_lens
from normlens.models.lens import Identity, Lens, Lineage, Role
from normlens.models.parameters import gain_and_bias
from normlens.text import BosPolicy
from normlens.text.sequences import Batch, Sequences
from tests import tiny
from tests.oracles import direct_effect as oracle
from tests.tiny import VOCABULARY, tiny_fixed_scale, tiny_gpt2, tiny_llama

REPLICATES = 40


def eps_encoded() -> GPT2LMHeadModel:
    """The public scale-free format: eps 1e12, gain times 1e6 / scale."""
    model = tiny_gpt2(3)
    for index, norm in enumerate(m for m in model.modules() if isinstance(m, nn.LayerNorm)):
        norm.eps = 1e12
        norm.weight.data *= 1e6 / (1.5 + 0.2 * index)
    return model


def identity_norms() -> GPT2LMHeadModel:
    model = tiny_gpt2(4)
    for name in [n for n, m in model.named_modules() if isinstance(m, nn.LayerNorm)]:
        model.set_submodule(name, nn.Identity())
    return model


MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "layer_norm": tiny_gpt2,
    "rms_norm": tiny_llama,
    "rms_norm_biases": lambda: tiny_llama(attention_bias=True, mlp_bias=True),
    "fixed_scale": tiny_fixed_scale,
    "eps_encoded": eps_encoded,
    "identity": identity_norms,
}
SCALE_FREE = ("fixed_scale", "eps_encoded", "identity")


@cache
def tokenizer() -> PreTrainedTokenizerBase:
    """The bundled tokenizer, read once."""
    return tiny.tokenizer()


@dataclass(frozen=True)
class Parts:
    embeddings: dict[str, nn.Module]
    out: list[nn.Module]
    mlp: list[nn.Module]
    final: nn.Module


def lens_of(model: PreTrainedModel) -> Lens:
    return build_lens(model, tokenizer(), Identity("tiny", "memory", "0", "0"), Lineage())


def parts(model: Any) -> Parts:
    if model.config.model_type == "gpt2":
        blocks = list(model.transformer.h)
        return Parts(
            {"embed": model.transformer.wte, "pos_embed": model.transformer.wpe},
            [b.attn.c_proj for b in blocks],
            [b.mlp for b in blocks],
            model.transformer.ln_f,
        )
    blocks = list(model.model.layers)
    return Parts(
        {"embed": model.model.embed_tokens},
        [b.self_attn.o_proj for b in blocks],
        [b.mlp for b in blocks],
        model.model.norm,
    )


def weights_of(lens: Lens) -> ComponentWeights:
    model: Any = lens.model
    final = next(site for site in lens.sites if site.role is Role.FINAL)
    gamma, beta = gain_and_bias(lens, final)
    heads, width = model.config.num_attention_heads, model.config.hidden_size
    w_o, b_o = [], []
    for module in parts(model).out:
        weight = module.get_parameter("weight")
        weight = weight if isinstance(model, GPT2LMHeadModel) else weight.T
        w_o.append(weight.unflatten(0, (heads, -1)))
        b_o.append(dict(module.named_parameters()).get("bias"))
    assert w_o[0].shape[-1] == width
    return ComponentWeights(w_o, b_o, model.lm_head.weight.T, None, gamma, beta, final)


def observe(lens: Lens, ids: Tensor) -> Observed:
    model: Any = lens.model
    seen: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[[Tensor], None]:
        def record(value: Tensor) -> None:
            seen[name] = value.detach()

        return record

    found = parts(model)
    hooks = [Hook(m, "output", keep(name), name) for name, m in found.embeddings.items()]
    for i, (out, mlp) in enumerate(zip(found.out, found.mlp, strict=True)):
        hooks.append(Hook(out, "input", keep(f"z{i}")))
        hooks.append(Hook(mlp, "output", keep(f"mlp{i}")))
    hooks.append(Hook(found.final, "input", keep("residual")))
    with torch.no_grad(), hooked(model, hooks):
        logits = model(input_ids=ids, use_cache=False).logits
    layers = range(len(found.out))
    residual = seen["residual"]
    return Observed(
        logits=logits,
        components=Components(
            {name: seen[name].expand_as(residual) for name in found.embeddings},
            [seen[f"z{i}"] for i in layers],
            [seen[f"mlp{i}"] for i in layers],
            residual,
        ),
    )


def vectors(components: Components, weights: ComponentWeights) -> dict[str, Tensor]:
    """Every component as a vector ``[batch pos d_model]``, float64."""
    out = {name: value.double() for name, value in components.embeddings.items()}
    for layer, (w_o, b_o) in enumerate(zip(weights.w_o, weights.b_o, strict=True)):
        z = components.z[layer].double().unflatten(-1, w_o.shape[:2])
        terms = [z[:, :, head] @ w_o[head].double() for head in range(len(w_o))]
        if b_o is not None:
            terms.append(b_o.double().expand_as(components.residual))
        norm, branch = weights.post_attention.get(layer), weights.scaling.branch
        if norm is None:
            terms = [branch * term for term in terms]
        else:
            after = oracle.Norm(
                norm.spec.kind.value, norm.spec.eps or 0.0, 1.0, norm.gamma, norm.beta
            )
            terms, beta = oracle.through_attention_norm(terms, after, branch)
            terms += [] if beta is None else [beta]
        out |= {f"L{layer}.H{h}": term for h, term in enumerate(terms[: len(w_o)])}
        if terms[len(w_o) :]:
            out[f"L{layer}.attn_bias"] = torch.stack(terms[len(w_o) :]).sum(0)
        out[f"L{layer}.mlp"] = components.mlp[layer].double()
    return out


def sequences(lengths: Sequence[int], *, bos: BosPolicy = "prepend", seed: int = 0) -> Sequences:
    """Random tokens, one document per two sequences, padded with an ordinary token."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, VOCABULARY, (len(lengths), max(lengths)), generator=generator)
    real = torch.arange(ids.shape[1])[None, :] < torch.tensor(lengths)[:, None]
    ids = ids.where(real, 17)
    if bos == "prepend":
        ids[:, 0] = 0
    documents = torch.arange(len(lengths)) // 2
    names = tuple(f"document {i}" for i in range(int(documents[-1]) + 1))
    return Sequences(
        ids, torch.tensor(lengths), documents, names, "random", bos, 17, "no tokenizer"
    )


def context_of(lens: Lens, corpus: Sequences, parameters: Any) -> Context:
    return Context(lens, parameters, corpus, REPLICATES, weights_of(lens))


def batches_of(corpus: Sequences, size: int) -> list[Batch]:
    weights = poisson_weights(corpus.document_ids, seed=1, replicates=REPLICATES)
    return list(batches(corpus, 0, len(corpus), size=size, device="cpu", weights=weights))
