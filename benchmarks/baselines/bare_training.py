"""What training costs without a trainer: the loop one writes by hand, as fast as it gets."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel


class BareLoop:
    """AdamW with clipping over micro-batches; no log, no evaluation, no schedule.

    Args:
        model: in training mode.
        micro_batch: sequences that go through the model at a time.
        lr: learning rate.
    """

    def __init__(self, model: PreTrainedModel, micro_batch: int, lr: float) -> None:
        self.model = model
        self.micro_batch = micro_batch
        self.parameters = list(model.parameters())
        self.optimizer = torch.optim.AdamW(self.parameters, lr=lr, fused=True)

    def step(self, ids: Tensor) -> float:
        """One step on a batch; returns the loss."""
        total = 0.0
        parts = ids.split(self.micro_batch)
        for part in parts:
            logits = self.model(input_ids=part, use_cache=False).logits[:, :-1]
            loss = F.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten()) / len(parts)
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return total
