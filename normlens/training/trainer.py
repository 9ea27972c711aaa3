"""One step of training: norms and learning rate, gradients, update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from normlens.errors import UsageError
from normlens.hooks import Hook, hooked
from normlens.models.detect import is_norm
from normlens.training.final_norm import final_norm
from normlens.training.objective import auxiliary_scale_loss, next_token_loss
from normlens.training.recipe import Optimizer, Recipe
from normlens.training.removal import NormRemoval
from normlens.training.removal_norm import RemovableNorm
from normlens.training.replicas import Replicas, alone
from normlens.training.schedule import Switch, learning_rate


@runtime_checkable
class AfterStep(Protocol):
    """A model that puts its weights right after each update (nGPT normalises them)."""

    def after_step(self) -> None:
        """Change parameters in place, without gradients."""
        ...


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
        replicas: the processes that train copies of it; by default this one alone.

    Raises:
        UsageError: the recipe asks for gradient checkpointing, which the model lacks.
        NotApplicable: it asks for a removal or an auxiliary loss that the model does not
            allow.
    """

    def __init__(
        self, recipe: Recipe, model: PreTrainedModel, replicas: Replicas | None = None
    ) -> None:
        self.recipe = recipe
        self.model = model
        device = next(model.parameters()).device
        self._device = device.type
        self._replicas = replicas or alone(device)
        # Read before the removal exchanges the norm.
        self._final = final_norm(model) if recipe.auxiliary else None
        if recipe.gradient_checkpointing:
            _checkpoint_gradients(model)
        # Once: the protocol is looked up member by member.
        self._after_step = model if isinstance(model, AfterStep) else None
        self._removal = NormRemoval(model, recipe.removal) if recipe.removal else None
        self.optimizer = _adamw(model, recipe.optimizer)

    @property
    def switches(self) -> tuple[Switch, ...]:
        """Scales that the removal freezes, in order of execution; empty without one."""
        return self._removal.switches if self._removal else ()

    def prepare(self, step: int) -> int:
        """Set the norms and the learning rate for ``step``; returns the live scales."""
        live = self._removal.advance(step) if self._removal else 0
        rate = learning_rate(step, self.recipe.steps, self.recipe.optimizer)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        return live

    def gradients(self, ids: Int[Tensor, "batch pos"]) -> StepLosses:
        """Losses of a batch; leaves clipped gradients on the parameters.

        Micro-batches, and the shares of several processes, weigh by their tokens, so their
        gradients add up to those of the whole batch. The target of the auxiliary loss is a
        mean over one micro-batch.
        """
        loss = torch.zeros((), device=ids.device)
        auxiliary = torch.zeros((), device=ids.device)
        for part in self._replicas.deal(ids).split(self.recipe.micro_batch or len(ids)):
            share = len(part) / len(ids)
            predicted, steadied = self._losses(part)
            ((predicted + steadied) * share).backward()
            loss += share * predicted.detach()
            auxiliary += share * steadied.detach()
        grads = [p.grad for p in self.model.parameters() if p.grad is not None]
        self._replicas.add_up([loss, auxiliary, *grads])
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.optimizer.clip)
        return StepLosses(loss.item(), auxiliary.item(), norm.item())

    def update(self) -> None:
        """Apply the gradients and let the removal observe the last forward passes."""
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self._after_step:
            self._after_step.after_step()
        if self._removal:
            self._removal.observe()

    def finish(self) -> None:
        """Exchange removed norms for fixed ones; the model is then in eval mode."""
        if self._removal:
            self._removal.finish()
        self.model.eval()

    def _losses(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        half = self.recipe.precision == "bfloat16"
        with torch.autocast(self._device, torch.bfloat16, enabled=half):
            if self.recipe.auxiliary is None or self._final is None:
                return next_token_loss(self.model, ids), torch.zeros((), device=ids.device)
            anchor = self._removal.anchor if self._removal else None
            anchored = self.recipe.auxiliary.target == "anchor"
            if anchored and anchor is None:
                return next_token_loss(self.model, ids), torch.zeros((), device=ids.device)
            seen: list[Tensor] = []
            module = self.model.get_submodule(self._final.path)
            with hooked(self.model, [Hook(module, "input", seen.append, "final norm")]):
                loss = next_token_loss(self.model, ids)
            auxiliary = auxiliary_scale_loss(
                seen[0].float(),
                self._final.eps,
                self.recipe.auxiliary,
                centred=self._final.centred,
                anchor=anchor if anchored else None,
            )
            return loss, auxiliary


def _checkpoint_gradients(model: PreTrainedModel) -> None:
    if not model.supports_gradient_checkpointing:
        raise UsageError(
            f"{type(model).__name__} has no gradient checkpointing; set gradient_checkpointing "
            "to false and lower micro_batch instead"
        )
    model.activation_checkpointing_enable({"use_reentrant": False})


def _is_norm(module: nn.Module) -> bool:
    return is_norm(module) or isinstance(module, RemovableNorm)


def _adamw(model: nn.Module, options: Optimizer) -> torch.optim.AdamW:
    """AdamW without weight decay for norms and for whatever is a vector or a number."""
    norms = {id(p) for module in model.modules() if _is_norm(module) for p in module.parameters()}
    parameters = [p for p in model.parameters() if p.requires_grad]
    kept = [p for p in parameters if p.ndim < 2 or id(p) in norms]
    apart = {id(p) for p in kept}
    groups = [
        {
            "params": [p for p in parameters if id(p) not in apart],
            "weight_decay": options.weight_decay,
        },
        {"params": kept, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=options.lr, betas=options.betas, fused=True)
