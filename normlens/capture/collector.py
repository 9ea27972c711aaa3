"""Collecting components from one forward pass of a component view."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from normlens.capture.protocol import Components, ComponentWeights
from normlens.errors import NotApplicable
from normlens.hooks import Hook
from normlens.models.components import ComponentView
from normlens.models.lens import Lens, Role
from normlens.models.parameters import gain_and_bias


class ComponentCollector:
    """Hooks that keep the tensors of :class:`Components` for one pass."""

    def __init__(self, view: ComponentView) -> None:
        if view.final_norm is None:
            raise NotApplicable(
                "the model has no final norm module, so its last residual is not seen"
            )
        self._seen: dict[str, Tensor] = {}
        self._layers = view.n_layers
        self._embeddings = [f"embed.{i}" for i in range(len(view.embeddings))]
        self.hooks = [
            Hook(module, "output", self._keep(name), name)
            for name, module in zip(self._embeddings, view.embeddings, strict=True)
        ]
        for index, layer in enumerate(view.layers):
            self.hooks += [
                Hook(layer.out_projection, "input", self._keep(f"z.{index}"), f"z.{index}"),
                Hook(layer.mlp_output, "output", self._keep(f"mlp.{index}"), f"mlp.{index}"),
            ]
        self.hooks.append(Hook(view.final_norm, "input", self._keep("residual"), "final norm"))

    def components(self) -> Components:
        """What the pass left; call once the hooks have fired."""
        residual = self._seen["residual"]
        names = ("embed", "pos_embed", *self._embeddings[2:])
        return Components(
            embeddings={
                shown: self._seen[name].expand_as(residual)
                for shown, name in zip(names, self._embeddings, strict=False)
            },
            z=[self._seen[f"z.{i}"] for i in range(self._layers)],
            mlp=[self._seen[f"mlp.{i}"] for i in range(self._layers)],
            residual=residual,
        )

    def _keep(self, name: str) -> _Keep:
        return _Keep(self._seen, name)


@dataclass(frozen=True)
class _Keep:
    into: dict[str, Tensor]
    name: str

    def __call__(self, value: Tensor) -> None:
        self.into[self.name] = value


def component_weights(view: ComponentView, lens: Lens) -> ComponentWeights:
    """The linear maps of a view and the affine of the final norm, nothing folded.

    Raises:
        NotApplicable: the model has no final norm site.
    """
    final = next((site for site in lens.sites if site.role is Role.FINAL), None)
    if final is None:
        raise NotApplicable(f"{lens.identity.name} has no final norm site")
    gamma, beta = gain_and_bias(lens, final)
    return ComponentWeights(
        w_o=[layer.W_O for layer in view.layers],
        b_o=[layer.b_O for layer in view.layers],
        w_u=view.W_U,
        b_u=view.b_U,
        gamma=gamma,
        beta=beta,
        final=final,
    )
