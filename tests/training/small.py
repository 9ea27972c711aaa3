"""The smallest runs that still train: a 2-layer model of width 16 on a few pages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from normlens.resources import data_path
from normlens.text import Document, Documents
from normlens.training.recipe import Recipe, parse_recipe
from normlens.training.text import TrainingText, texts

REMOVAL = {
    "mlp": {"start": 3, "gap": 2},
    "qk": {"start": 6, "gap": 2},
    "v": {"start": 9, "gap": 2},
    "final_step": 13,
}


def small_recipe(**changes: Any) -> Recipe:
    """20 steps with a removal and the auxiliary loss, a checkpoint every 5."""
    fields: dict[str, Any] = {
        "name": "small",
        "purpose": "A test.",
        "steps": 20,
        "batch_size": 3,
        "seed": 5,
        "data_seed": 7,
        "checkpoint_every": 5,
        "evaluate_every": 7,
        "evaluation_sequences": 5,
        "architecture": {
            "layers": 2,
            "width": 16,
            "heads": 2,
            "context": 16,
            "vocabulary": 4096,
            "norm_eps": 3e-4,
        },
        "optimizer": {"lr": 5e-3, "final_lr_fraction": 0.2, "warmup_steps": 4},
        "auxiliary": {"weight": 0.1},
        "removal": REMOVAL,
    }
    return parse_recipe({**fields, **changes}, where="test recipe")


def llama_recipe(model: Path, **changes: Any) -> Recipe:
    """20 steps on the tiny Llama, in micro-batches and with gradient checkpointing."""
    fields: dict[str, Any] = {
        "name": "small",
        "purpose": "A test.",
        "ancestor": str(model),
        "steps": 20,
        "batch_size": 4,
        "micro_batch": 2,
        "gradient_checkpointing": True,
        "context": 16,
        "seed": 5,
        "data_seed": 7,
        "checkpoint_every": 5,
        "evaluate_every": 7,
        "evaluation_sequences": 5,
        "optimizer": {"lr": 1e-3, "final_lr_fraction": 0.2, "warmup_steps": 4},
        "auxiliary": {"weight": 0.1, "target": "anchor"},
        "removal": REMOVAL,
    }
    return parse_recipe({**fields, **changes}, where="test recipe")


def excerpts() -> list[str]:
    """The bundled held-out excerpts."""
    lines = data_path("text", "books-held-out.jsonl").read_text(encoding="utf-8").split("\n")
    return [json.loads(line)["text"] for line in lines if line]


def small_text(directory: Path) -> TrainingText:
    """Two documents of a few thousand characters, as files in ``directory``."""
    paths = []
    for number, text in enumerate(excerpts()[:2]):
        path = directory / f"{number}.txt"
        path.write_text(text[: 4000 + 1000 * number], encoding="utf-8")
        paths.append(path)
    return texts(paths)


def small_held_out() -> Documents:
    """Some other pages."""
    return Documents("pages", (Document("pages", excerpts()[2][:3000]),))
