"""Initial weights, by rule. ``L`` is the number of blocks, ``d`` the width.

Standard deviations of the normal distribution a linear's weight is drawn from:

* normal: the config's range everywhere. LayerNorm Scaling is meant to be trained so: its
  authors found that smaller writers weaken it (2502.05795, note to the abstract).
* gpt2: the config's range, ``1 / sqrt(2 L)`` of it for linears that write into the stream
  (GPT-2).
* deepnorm: ``gain * sqrt(2 / (fan_in + fan_out))`` (Xavier); the gain is 1 for q and k and
  ``(8 L) ** (-1/4)`` for v, o, gate, up and down (2203.00555, figure 2, decoder only).
* depth_scaled: ``sqrt(1 / (2 d L))`` everywhere (TinyInit, 2504.07866, section 2).
* fixup: the config's range times ``(2 L) ** (-1/2)`` for the first linears of a branch, 0 for
  the last one, so that every block starts as the identity (1901.09321, section 3, with
  ``2 L`` branches of ``m = 2`` layers). Its learned factor is ``branch_scale``; its biases
  are those of the linears. The unembedding, which Fixup starts at 0, is drawn as in the
  other rules, since it may be tied.
* ngpt: ``1 / sqrt(d)``, after which every weight vector is given unit length.

Biases start at 0, norms as they come. Embeddings and an untied unembedding are drawn with the
config's range, under ngpt with ``1 / sqrt(d)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from torch import nn
from torch.nn.utils.parametrize import is_parametrized
from transformers import initialization as init

from normlens.decoder.linear import draw_reparametrised

if TYPE_CHECKING:
    from normlens.decoder.config import DecoderConfig

WRITERS = ("o_proj", "down_proj")
"""Linears whose output is added to the stream."""

SMALL = 1e-3
"""Standard deviation of a reparametrised weight where a rule says 0."""


@dataclass(frozen=True)
class Rule:
    """Standard deviations of initial weights.

    Attributes:
        reader: of a linear that reads the stream, given the config, the linear and its name.
        writer: of one that writes into it, likewise.
        embedding: of the embeddings and of an untied unembedding, given the config.
    """

    reader: Callable[[DecoderConfig, nn.Linear, str], float]
    writer: Callable[[DecoderConfig, nn.Linear, str], float]
    embedding: Callable[[DecoderConfig], float]


def _base(config: DecoderConfig, linear: nn.Linear, name: str) -> float:
    return config.initializer_range


def _base_over_depth(config: DecoderConfig, linear: nn.Linear, name: str) -> float:
    return config.initializer_range / math.sqrt(2 * config.num_hidden_layers)


def _zero(config: DecoderConfig, linear: nn.Linear, name: str) -> float:
    return 0.0


def _xavier(config: DecoderConfig, linear: nn.Linear, name: str) -> float:
    xavier = math.sqrt(2 / (linear.in_features + linear.out_features))
    if name in ("q_proj", "k_proj"):
        return xavier
    return xavier * (8 * config.num_hidden_layers) ** -0.25


def _tiny(config: DecoderConfig, linear: nn.Linear, name: str) -> float:
    return (2 * config.hidden_size * config.num_hidden_layers) ** -0.5


def _unit(config: DecoderConfig, linear: nn.Linear, name: str) -> float:
    return config.hidden_size**-0.5


def _range(config: DecoderConfig) -> float:
    return config.initializer_range


def _inverse_root_width(config: DecoderConfig) -> float:
    return config.hidden_size**-0.5


INITIALISATIONS: Mapping[str, Rule] = MappingProxyType(
    {
        "normal": Rule(_base, _base, _range),
        "gpt2": Rule(_base, _base_over_depth, _range),
        "deepnorm": Rule(_xavier, _xavier, _range),
        "depth_scaled": Rule(_tiny, _tiny, _range),
        "fixup": Rule(_base_over_depth, _zero, _range),
        "ngpt": Rule(_unit, _unit, _inverse_root_width),
    }
)
"""Rules by name."""


def initialise_linear(config: DecoderConfig, linear: nn.Linear, name: str) -> None:
    """Draw the weight of a block's linear and set its bias to 0.

    Args:
        config: of the model.
        linear: plain or reparametrised.
        name: of the linear in its branch, such as ``o_proj``.
    """
    rule = INITIALISATIONS[config.initialisation]
    std = (rule.writer if name in WRITERS else rule.reader)(config, linear, name)
    if is_parametrized(linear, "weight"):
        # A row of length 0 has no direction, so a reparametrised writer starts small instead.
        draw_reparametrised(linear, std or SMALL)
    else:
        init.normal_(linear.weight, mean=0.0, std=std)
    if linear.bias is not None:
        init.zeros_(linear.bias)
