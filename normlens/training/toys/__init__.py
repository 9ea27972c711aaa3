"""Tasks made for one question, with models small enough to train while one waits."""

from __future__ import annotations

from normlens.training.toys.bigram_backcopy import BigramBackcopy, Optimum, character_task
from normlens.training.toys.extremes import Extremes, LayerExtremes, measure
from normlens.training.toys.run import initialised_toy, train_toy
from normlens.training.toys.variants import VARIANTS, toy_recipe

__all__ = [
    "VARIANTS",
    "BigramBackcopy",
    "Extremes",
    "LayerExtremes",
    "Optimum",
    "character_task",
    "initialised_toy",
    "measure",
    "toy_recipe",
    "train_toy",
]
