"""Tiny models with something implanted whose every consequence is known in closed form.

All of them have no attention output and no MLP output but what is said below, and no
position embeddings, so the residual stream of a token is a function of the token alone::

    r_i = E[token]                        for every depth i up to the planted block
    r_i = E[token] + [token = SPIKE] * value * unit(ROW)   after it

Gains, biases and embeddings are random, eps is unusual, the embeddings have a mean.

**Massive activation and super weight.** The embedding has a marker: ``E[t, MARKER] = -1``
for every token and ``+1`` for SPIKE. In block LAYER, MLP neuron COLUMN reads ``GAIN *
y_MARKER``, with ``y`` the output of the norm before the MLP, and one single weight ``w``
of the down-projection writes to dimension ROW. SPIKE's ``y_MARKER`` is

    y = gamma * (E[SPIKE, MARKER] - mu) / scale + beta,

the pre-activation ``a = GAIN * y`` is above 20, where GELU and SiLU are the identity in
float32; for any other token it is below -20, where both are 0. So the activation is ``a``
(GPT-2) or ``a**2`` (Llama, whose gate and up projection are alike), and with ``w = value /
activation`` the residual gains exactly ``value`` in ROW at SPIKE tokens. The clean twin
has ``w = 0``.

**Outlier dimension.** No block writes anything. ``E[t, ROW] = +-LARGE`` with an even number
of each sign, so at every norm ``xhat_ROW = +-LARGE / scale`` up to the mean: with width d
and the other coordinates small this is near ``sqrt(d)``, its largest possible value. The
clean twin keeps the random coordinate.

**Entropy neuron.** In the last block, MLP neuron COLUMN is always on (bias alone, GPT-2
only) and writes ``value * (unit(ROW) - unit(TWIN))``. The final norm's gain and the
unembedding are alike in ROW and TWIN, so no logit sees the write except through the final
norm's scale: with the scale frozen its ablation changes nothing. In the clean twin the
unembeddings of ROW and TWIN differ.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from transformers import GPT2LMHeadModel, LlamaForCausalLM, PreTrainedModel

from tests.tiny import EPS, tiny_gpt2, tiny_llama

VOCABULARY = 61
WIDTH, LAYERS = 64, 3
SPIKE, LAYER = 7, 1
MARKER, ROW, TWIN, COLUMN = 5, 23, 40, 11
GAIN = 30.0
VALUE = -2500.0
LARGE = 20.0
KINDS = ("gpt2", "llama")


@dataclass(frozen=True)
class Planted:
    """A model and what was implanted.

    Attributes:
        model: the model.
        embedding: ``[vocabulary d]``, the residual of each token before the planted block.
        value: what SPIKE tokens gain in ROW after block LAYER; 0 in a clean twin.
    """

    model: PreTrainedModel
    embedding: torch.Tensor
    value: float

    def residual(self, ids: list[int], depth: int) -> torch.Tensor:
        """The residual stream ``[pos d]`` after ``depth`` blocks, float64."""
        x = self.embedding[torch.tensor(ids)].double()
        if depth > LAYER:
            x[torch.tensor(ids) == SPIKE, ROW] += self.value
        return x


def massive(kind: str, *, clean: bool = False) -> Planted:
    """A massive activation of :data:`VALUE` in ROW at every SPIKE after block LAYER."""
    model = _silent(kind)
    table = model.get_input_embeddings().get_parameter("weight")
    with torch.no_grad():
        table[:, MARKER] = -1.0
        table[SPIKE, MARKER] = 1.0
    value = 0.0 if clean else VALUE
    _write(model, value)
    return Planted(model, table.detach().clone(), value)


def outlier_dimension(kind: str, *, clean: bool = False) -> Planted:
    """ROW is ``+-LARGE`` in the embedding of every token."""
    model = _silent(kind)
    table = model.get_input_embeddings().get_parameter("weight")
    if not clean:
        signs = torch.where(torch.arange(VOCABULARY) % 2 == 0, 1.0, -1.0)
        with torch.no_grad():
            table[:, ROW] = LARGE * signs
    return Planted(model, table.detach().clone(), 0.0)


def entropy_neuron(*, clean: bool = False, value: float = 30.0) -> Planted:
    """A GPT-2 whose last MLP always writes ``value`` where no logit reads it."""
    model = _silent("gpt2")
    assert isinstance(model, GPT2LMHeadModel)
    mlp = model.transformer.h[-1].mlp
    table = model.get_input_embeddings().get_parameter("weight")
    with torch.no_grad():
        model.lm_head.weight = nn.Parameter(table.detach().clone())
        gain = model.transformer.ln_f.weight
        gain[TWIN] = gain[ROW]
        if not clean:
            model.lm_head.weight[:, TWIN] = model.lm_head.weight[:, ROW]
        mlp.c_fc.weight[:, COLUMN] = 0.0
        mlp.c_fc.bias[COLUMN] = 25.0
        mlp.c_proj.weight[COLUMN, ROW] = value / 25.0
        mlp.c_proj.weight[COLUMN, TWIN] = -value / 25.0
    return Planted(model, table.detach().clone(), value)


def _silent(kind: str) -> PreTrainedModel:
    """A model whose blocks write nothing."""
    if kind == "gpt2":
        model: PreTrainedModel = tiny_gpt2(
            3, vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=LAYERS, tie_word_embeddings=False
        )
        assert isinstance(model, GPT2LMHeadModel)
        writers = [m for b in model.transformer.h for m in (b.attn.c_proj, b.mlp.c_proj)]
        writers.append(model.transformer.wpe)
    else:
        model = tiny_llama(3, vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=LAYERS)
        assert isinstance(model, LlamaForCausalLM)
        writers = [m for b in model.model.layers for m in (b.self_attn.o_proj, b.mlp.down_proj)]
    with torch.no_grad():
        for writer in writers:
            for parameter in writer.parameters():
                parameter.zero_()
    return model


def _write(model: PreTrainedModel, value: float) -> None:
    """Let neuron COLUMN of block LAYER add ``value`` to ROW at SPIKE tokens."""
    table = model.get_input_embeddings().get_parameter("weight")
    with torch.no_grad():
        if isinstance(model, GPT2LMHeadModel):
            block = model.transformer.h[LAYER]
            _steady(block.ln_2)
            block.mlp.c_fc.weight[:, COLUMN] = 0.0
            block.mlp.c_fc.weight[MARKER, COLUMN] = GAIN
            block.mlp.c_fc.bias[COLUMN] = 0.0
            a = GAIN * _marker(table[SPIKE], block.ln_2, centred=True)
            block.mlp.c_proj.weight[COLUMN, ROW] = value / a
            return
        assert isinstance(model, LlamaForCausalLM)
        block = model.model.layers[LAYER]
        _steady(block.post_attention_layernorm)
        for projection in (block.mlp.gate_proj, block.mlp.up_proj):
            projection.weight[COLUMN] = 0.0
            projection.weight[COLUMN, MARKER] = GAIN
        a = GAIN * _marker(table[SPIKE], block.post_attention_layernorm, centred=False)
        block.mlp.down_proj.weight[ROW, COLUMN] = value / a**2


def _steady(norm: nn.Module) -> None:
    """A gain at the marker that keeps its sign."""
    norm.get_parameter("weight")[MARKER] = 1.3


def _marker(x: torch.Tensor, norm: nn.Module, *, centred: bool) -> float:
    """``y_MARKER`` of one token, by the formula of the norm in float64."""
    x = x.double()
    c = x - x.mean() if centred else x
    scale = (c.square().mean() + EPS).sqrt()
    y = norm.get_parameter("weight")[MARKER].double() * c[MARKER] / scale
    if centred:
        y = y + norm.get_parameter("bias")[MARKER].double()
    return float(y)
