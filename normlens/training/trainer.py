"""One step of training: norms and learning rate, gradients, update."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor, nn
from transformers import GPT2LMHeadModel

from normlens.hooks import Hook, hooked
from normlens.training.objective import auxiliary_scale_loss, next_token_loss
from normlens.training.recipe import Optimizer, Recipe
from normlens.training.removal import NormRemoval


@dataclass(frozen=True)
class StepLosses:
    """One step's losses in nats/token and the gradient norm before clipping."""

    loss: float
    auxiliary: float
    gradient_norm: float


class Trainer:
    """Model, optimizer and removal of one run; prepare, gradients, update make one step.

    Args:
        recipe: what to do.
        model: the initialised or ancestor model, float32, on the device to train on.
    """

    def __init__(self, recipe: Recipe, model: GPT2LMHeadModel) -> None:
        self.recipe = recipe
        self.model = model
        self._eps = model.transformer.ln_f.eps
        self._removal = NormRemoval(model, recipe.removal) if recipe.removal else None
        self.optimizer = _adamw(model, recipe.optimizer)

    def prepare(self, step: int) -> int:
        """Set the norms and the learning rate for ``step``; returns the live scales."""
        live = self._removal.advance(step) if self._removal else 0
        rate = learning_rate(step, self.recipe.steps, self.recipe.optimizer)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        return live

    def gradients(self, ids: Int[Tensor, "batch pos"]) -> StepLosses:
        """Losses of a batch; leaves clipped gradients on the parameters."""
        loss, auxiliary = self._losses(ids)
        (loss + auxiliary).backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.optimizer.clip)
        return StepLosses(loss.item(), auxiliary.item(), norm.item())

    def update(self) -> None:
        """Apply the gradients and let the removal observe the last forward pass."""
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self._removal:
            self._removal.observe()

    def finish(self) -> None:
        """Exchange removed norms for fixed ones; the model is then in eval mode."""
        if self._removal:
            self._removal.finish()
        self.model.eval()

    def _losses(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        if self.recipe.auxiliary is None:
            return next_token_loss(self.model, ids), torch.zeros(())
        seen: list[Tensor] = []
        final = Hook(self.model.transformer.ln_f, "input", seen.append, "final norm")
        with hooked(self.model, [final]):
            loss = next_token_loss(self.model, ids)
        return loss, auxiliary_scale_loss(seen[0], self._eps, self.recipe.auxiliary)


def learning_rate(step: int, steps: int, optimizer: Optimizer) -> float:
    """Linear warm-up to ``lr``, then a cosine to ``final_lr_fraction * lr`` at the last step."""
    if step < optimizer.warmup_steps:
        return optimizer.lr * (step + 1) / optimizer.warmup_steps
    done = (step - optimizer.warmup_steps) / max(1, steps - 1 - optimizer.warmup_steps)
    floor = optimizer.final_lr_fraction
    return optimizer.lr * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))


def _adamw(model: nn.Module, options: Optimizer) -> torch.optim.AdamW:
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": options.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=options.lr, betas=options.betas, fused=True)
