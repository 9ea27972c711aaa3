"""Every kind of norm trains: the loss of a batch falls, and the norms' own parameters move."""

from __future__ import annotations

import math

import pytest
import torch

from normlens.models.detect import is_norm
from normlens.norms import KINDS, NormKind
from normlens.training.start import start_of
from normlens.training.trainer import Trainer
from tests.training.test_trainer import IDS, decoder_recipe

STEPS = 6
WITHOUT_GAIN = (NormKind.SIMPLE_RMS_NORM, NormKind.IDENTITY)


@pytest.mark.kind_cell("train step")
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_step_lowers_the_loss(kind: NormKind) -> None:
    fields: dict[str, object] = {"kind": kind.value, "gain": kind not in WITHOUT_GAIN}
    if kind is NormKind.FIXED_SCALE:
        fields["fixed_scale"] = 0.05
    optimizer = {"lr": 1e-2, "final_lr_fraction": 1.0, "warmup_steps": 0, "weight_decay": 0.0}
    recipe = decoder_recipe({"norm": fields}, optimizer=optimizer)
    model = start_of(recipe).model.train()
    before = {
        name: value.detach().clone()
        for path, norm in model.named_modules()
        if is_norm(norm)
        for name, value in norm.named_parameters(prefix=path)
    }
    assert bool(before) == (kind not in WITHOUT_GAIN)
    trainer = Trainer(recipe, model)
    losses = []
    for step in range(STEPS):
        trainer.prepare(step)
        found = trainer.gradients(IDS)
        assert math.isfinite(found.gradient_norm) and found.gradient_norm > 0
        losses.append(found.loss)
        trainer.update()
    assert losses[-1] < losses[0] - 0.02
    after = dict(model.named_parameters())
    assert not any(torch.equal(after[name], value) for name, value in before.items())
