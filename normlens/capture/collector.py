"""Collecting components from one forward pass of a component view."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from normlens.capture.protocol import Components, ComponentWeights
from normlens.hooks import Hook
from normlens.models.affine import site_affine
from normlens.models.components import ComponentView
from normlens.models.components_read import split_embeddings
from normlens.models.components_view import PostAttention
from normlens.models.lens import Lens, Role

EMBEDDINGS = ("embed", "pos_embed")


class ComponentCollector:
    """Hooks that keep the tensors of :class:`Components` for one pass.

    The pass has to make logits where the model scales or caps them: raw ones are kept then.
    """

    def __init__(self, view: ComponentView) -> None:
        self._seen: dict[str, Tensor] = {}
        self._view = view
        self.hooks = [
            Hook(view.layers[0].block, "input", self._keep("before"), "block 0"),
            Hook(view.final_norm, "input", self._keep("residual"), "final norm"),
        ]
        if view.position_embedding is not None:
            keep = self._keep("position")
            self.hooks.append(Hook(view.position_embedding, "output", keep, "position embedding"))
        if not view.scaling.keeps_logits:
            keep = self._keep("raw_logits")
            self.hooks.append(Hook(view.unembedding, "output", keep, "unembedding"))
        for i, layer in enumerate(view.layers):
            mlp = self._keep(f"mlp.{i}", _Times(view.scaling.branch))
            self.hooks += [
                Hook(layer.out_projection, "input", self._keep(f"z.{i}"), f"z.{i}"),
                Hook(layer.mlp_output, "output", mlp, f"mlp.{i}"),
            ]
            if layer.post_attention is not None:
                scale = self._keep(f"scale.{i}", layer.post_attention.scale)
                self.hooks.append(Hook(layer.out_projection, "output", scale, f"attention {i}"))

    def components(self) -> Components:
        """What the pass left; call once the hooks have fired."""
        residual = self._seen["residual"]
        embeddings = split_embeddings(self._seen["before"], self._seen.get("position"))
        layers = range(self._view.n_layers)
        return Components(
            embeddings=dict(zip(EMBEDDINGS, embeddings, strict=False)),
            z=[self._seen[f"z.{i}"] for i in layers],
            # OPT's linears see the tokens of all rows in one axis.
            mlp=[self._seen[f"mlp.{i}"].view_as(residual) for i in layers],
            residual=residual,
            attention_scale={
                i: self._seen[f"scale.{i}"] for i in layers if f"scale.{i}" in self._seen
            },
            raw_logits=self._seen.get("raw_logits"),
        )

    def _keep(self, name: str, of: Callable[[Tensor], Tensor] | None = None) -> _Keep:
        return _Keep(self._seen, name, of)


@dataclass(frozen=True)
class _Keep:
    into: dict[str, Tensor]
    name: str
    of: Callable[[Tensor], Tensor] | None

    def __call__(self, value: Tensor) -> None:
        self.into[self.name] = value if self.of is None else self.of(value)


@dataclass(frozen=True)
class _Times:
    """A multiple, always in memory of its own: Falcon adds attention to its MLP in place."""

    factor: float

    def __call__(self, value: Tensor) -> Tensor:
        return value.clone() if self.factor == 1.0 else value * self.factor


def component_weights(view: ComponentView, lens: Lens) -> ComponentWeights:
    """The linear maps of a view and the affine of the final norm, nothing folded."""
    final = next(site for site in lens.sites if site.role is Role.FINAL)
    gamma, beta = site_affine(lens, final)
    after: dict[int, PostAttention] = {
        i: layer.post_attention
        for i, layer in enumerate(view.layers)
        if layer.post_attention is not None
    }
    return ComponentWeights(
        w_o=[layer.W_O for layer in view.layers],
        b_o=[layer.b_O for layer in view.layers],
        w_u=view.W_U,
        b_u=view.b_U,
        gamma=gamma,
        beta=beta,
        final=final,
        post_attention=after,
        scaling=view.scaling,
    )
