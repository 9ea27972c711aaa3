"""The composed decoder from its state dict, one token after the other, in float64.

Every scheme is written out from its formula with loops over layers, positions and heads. No
module, no cache, no batch of tokens: what a token computes is read off these lines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_pytorch_tanh": lambda x: (
        0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    ),
    "relu": lambda x: x.clamp(min=0),
    "silu": lambda x: x / (1 + torch.exp(-x)),
}


@dataclass
class Oracle:
    """A decoder given by its tensors.

    Attributes:
        tensors: the state dict, any dtype.
        config: the fields of ``config.json``.
    """

    tensors: Mapping[str, Tensor]
    config: Mapping[str, Any]

    def logits(self, ids: Sequence[int]) -> Tensor:
        """Logits of one sequence, ``[pos vocab]``."""
        fields, scheme = self.config, self.config["placement"]
        stream = []
        for position, token in enumerate(ids):
            x = self.get("model.embed_tokens.weight")[token]
            if fields["positions"] == "learned":
                x = x + self.get("model.embed_positions.weight")[position]
            stream.append(x)
        embedding = fields["embedding_norm"]
        if embedding is None and scheme in ("peri", "ngpt"):
            embedding = fields["norm"]
        if fields["embedding_scale"] is not None:
            stream = [self.get("model.embed_scale.weight") * x for x in stream]
        if embedding is not None:
            stream = [self.norm("model.embed_norm", embedding, x) for x in stream]
        for layer in range(fields["num_hidden_layers"]):
            stream = self.block(layer, stream)
        if fields["final_norm"] is not None:
            stream = [self.norm("model.final_norm", fields["final_norm"], x) for x in stream]
        name = "model.embed_tokens.weight" if fields["tie_word_embeddings"] else "lm_head.weight"
        logits = torch.stack([self.get(name) @ x for x in stream])
        if scheme == "ngpt":
            logits = logits * self.get("logit_scale.weight") * fields["hidden_size"] ** 0.5
        return logits

    def block(self, layer: int, stream: list[Tensor]) -> list[Tensor]:
        """The stream after a block."""
        for part, body in (("attn", self.attention), ("mlp", self.mlp)):
            path = f"model.layers.{layer}.{part}"
            stream = self.branch(path, part, layer, stream, body)
        return stream

    def branch(
        self,
        path: str,
        part: str,
        layer: int,
        x: list[Tensor],
        body: Callable[[str, list[Tensor]], list[Tensor]],
    ) -> list[Tensor]:
        """The stream after attention or MLP, scheme by scheme."""
        scheme, norm = self.config["placement"], self.config["norm"]
        before = norm
        if self.config["depth_factor"] == "inverse_sqrt":
            before = {**norm, "factor": 1 / math.sqrt(layer + 1)}

        def scaled(y: list[Tensor]) -> list[Tensor]:
            if self.config["branch_scale"] is None:
                return y
            return [self.get(f"{path}.scale.weight") * one for one in y]

        def through(name: str, fields: Mapping[str, Any], y: list[Tensor]) -> list[Tensor]:
            return [self.norm(f"{path}.{name}", fields, one) for one in y]

        def added(y: list[Tensor], alpha: float = 1.0) -> list[Tensor]:
            return [alpha * a + b for a, b in zip(x, y, strict=True)]

        match scheme:
            case "pre" | "every_linear":
                return added(scaled(body(path, through("pre_norm", before, x))))
            case "sandwich" | "peri" | "depth_scaled_sandwich":
                y = body(path, through("pre_norm", before, x))
                return added(scaled(through("post_norm", norm, y)))
            case "sdd":
                return added(scaled(through("post_norm", norm, body(path, x))))
            case "post":
                return through("exit_norm", norm, added(scaled(body(path, x))))
            case "deepnorm":
                alpha = (2 * self.config["num_hidden_layers"]) ** 0.25
                return through("exit_norm", norm, added(scaled(body(path, x)), alpha))
            case "hybrid":
                if part == "mlp":
                    x = through("entry_norm", before, x)
                return added(scaled(body(path, x)))
            case "ngpt":
                y = scaled(through("post_norm", norm, body(path, x)))
                weight = self.get(f"{path}.combine.scale.weight")
                rate = (weight * 0.05 * self.config["hidden_size"] ** 0.5).abs()
                moved = [a + rate * (b - a) for a, b in zip(x, y, strict=True)]
                return through("exit_norm", norm, moved)
        raise AssertionError(scheme)

    def attention(self, path: str, x: list[Tensor]) -> list[Tensor]:
        """What attention writes at each position."""
        fields, scheme, at = self.config, self.config["placement"], f"{path}.body"
        heads, size = fields["num_attention_heads"], fields["head_dim"]
        groups = heads // fields["num_key_value_heads"]
        around = fields["qk_norm"]
        if around is None and scheme in ("hybrid", "sdd", "ngpt"):
            around = fields["norm"]
        queries, keys, values = [], [], []
        for position, token in enumerate(x):
            q = list(self.linear(f"{at}.q_proj", token).split(size))
            k = list(self.linear(f"{at}.k_proj", token).split(size))
            v = self.linear(f"{at}.v_proj", token)
            if around is not None:
                q = [self.norm(f"{at}.q_norm", around, one) for one in q]
                k = [self.norm(f"{at}.k_norm", around, one) for one in k]
            if scheme in ("hybrid", "sdd"):
                v = self.norm(f"{at}.v_norm", fields["norm"], v)
            if fields["positions"] == "rotary":
                q = [self.rotated(one, position) for one in q]
                k = [self.rotated(one, position) for one in k]
            queries.append(q)
            keys.append(k)
            values.append(list(v.split(size)))
        written = []
        for i in range(len(x)):
            mixed = []
            for head in range(heads):
                shared = head // groups
                scores = [self.score(at, queries[i][head], keys[j][shared]) for j in range(i + 1)]
                weights = self.weights(scores)
                mixed.append(sum(w * values[j][shared] for j, w in enumerate(weights)))
            z = torch.cat(mixed)
            if scheme == "every_linear":
                z = self.norm(f"{at}.inner_norm", fields["norm"], z)
            written.append(self.linear(f"{at}.o_proj", z))
        return written

    def score(self, at: str, query: Tensor, key: Tensor) -> float:
        """One attention logit."""
        if self.config["qk_temperature"] is not None:
            factor = self.get(f"{at}.temperature.weight").item()
        elif self.config["attention_scale"] is not None:
            factor = self.config["attention_scale"]
        else:
            factor = 1 / math.sqrt(len(query))
        return factor * torch.dot(query, key).item()

    def weights(self, scores: list[float]) -> list[float]:
        """Weights of one query over the keys it sees."""
        match self.config["attention"]:
            case "softmax":
                positive = [math.exp(score) for score in scores]
            case "softplus_l1":
                positive = [math.log(1 + math.exp(score)) for score in scores]
            case "relu":
                return [max(score, 0.0) / len(scores) for score in scores]
            case other:
                raise AssertionError(other)
        return [one / sum(positive) for one in positive]

    def rotated(self, vector: Tensor, position: int) -> Tensor:
        """Rotary positions: element i turns with element i + half."""
        half = len(vector) // 2
        theta = self.config["rope_parameters"]["rope_theta"]
        out = vector.clone()
        for i in range(half):
            angle = position * theta ** (-i / half)
            a, b = vector[i], vector[i + half]
            out[i] = a * math.cos(angle) - b * math.sin(angle)
            out[i + half] = b * math.cos(angle) + a * math.sin(angle)
        return out

    def mlp(self, path: str, x: list[Tensor]) -> list[Tensor]:
        """What the MLP writes at each position."""
        fields, scheme, at = self.config, self.config["placement"], f"{path}.body"
        root = math.sqrt(fields["hidden_size"])
        written = []
        for token in x:
            up = self.linear(f"{at}.up_proj", token)
            if scheme == "sdd":
                up = self.norm(f"{at}.up_norm", fields["norm"], up)
            if scheme == "ngpt":
                up = up * self.get(f"{at}.up_scale.weight") * (1.0 if fields["gated"] else root)
            if fields["gated"]:
                gate = self.linear(f"{at}.gate_proj", token)
                if scheme == "sdd":
                    gate = self.norm(f"{at}.gate_norm", fields["norm"], gate)
                if scheme == "ngpt":
                    gate = gate * self.get(f"{at}.gate_scale.weight") * root
                hidden = self.activation(at, gate) * up
            else:
                hidden = self.activation(at, up)
            if scheme == "every_linear":
                hidden = self.norm(f"{at}.inner_norm", fields["norm"], hidden)
            written.append(self.linear(f"{at}.down_proj", hidden))
        return written

    def activation(self, at: str, x: Tensor) -> Tensor:
        """The nonlinearity of the MLP."""
        name = self.config["activation"]
        if name == "learnable_leaky_relu":
            slope = self.get(f"{at}.act.slope").item()
            return torch.tensor([v if v > 0 else slope * v for v in x.tolist()]).double()
        return ACTIVATIONS[name](x)

    def linear(self, path: str, x: Tensor) -> Tensor:
        """``W x + b`` with whatever the weight is made of."""
        within = f"{path}.parametrizations.weight"
        match self.config["linear"]:
            case "plain":
                weight = self.get(f"{path}.weight")
            case "weight_norm":
                length, direction = self.get(f"{within}.original0"), self.get(f"{within}.original1")
                weight = length * direction / direction.square().sum(1, keepdim=True).sqrt()
            case "weight_conditioning":
                weight = self.get(f"{within}.original")
                weight = weight / weight.square().sum(1, keepdim=True).sqrt()
            case other:
                raise AssertionError(other)
        out = weight @ x
        return out + self.get(f"{path}.bias") if self.config["linear_bias"] else out

    def norm(self, path: str, fields: Mapping[str, Any], x: Tensor) -> Tensor:
        """One norm of one vector."""
        factor = fields.get("factor", 1.0)
        path = path if factor == 1.0 else f"{path}.norm"
        match fields["kind"]:
            case "layer_norm":
                centred = x - x.mean()
                y = centred / (centred.square().mean() + fields["eps"]).sqrt()
            case "rms_norm":
                y = x / (x.square().mean() + fields["eps"]).sqrt()
            case "l2_norm":
                y = x / x.square().sum().sqrt()
            case "dyt":
                y = torch.tanh(self.get(f"{path}.alpha") * x)
            case "identity":
                y = x
            case other:
                raise AssertionError(other)
        if fields.get("gain"):
            y = y * self.get(f"{path}.weight")
        if fields.get("bias"):
            y = y + self.get(f"{path}.bias")
        return factor * y

    def get(self, name: str) -> Tensor:
        """A tensor in float64."""
        return self.tensors[name].double()
