"""Saved tiny models, made once; tests that damage one copy it first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from shutil import copytree

import pytest
import torch
from transformers import PreTrainedModel

from normlens.models.export import write_model
from tests.tiny import tiny_fixed_scale, tiny_gpt2, tiny_llama, tokenizer


def save_hugging_face(model: PreTrainedModel, path: Path) -> Path:
    """``model`` and the bundled tokenizer as transformers saves them."""
    model.save_pretrained(path)
    tokenizer().save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def gpt2_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_hugging_face(tiny_gpt2(1), tmp_path_factory.mktemp("gpt2") / "tiny-gpt2")


@pytest.fixture(scope="session")
def llama_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_hugging_face(tiny_llama(1), tmp_path_factory.mktemp("llama") / "tiny-llama")


@pytest.fixture(scope="session")
def fixed_scale_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fixed") / "tiny-fixed"
    card = {
        "purpose": "a test",
        "ancestor": "tiny-gpt2",
        "ancestor_sha256": "ab12",
        "licence": "Apache-2.0",
    }
    write_model(tiny_fixed_scale(1), tokenizer(), path, card=card, storage=torch.float32)
    return path


@pytest.fixture
def copy_of(tmp_path: Path) -> Callable[[Path], Path]:
    """Copies a directory into the test's own; damage that one."""

    def copied(path: Path) -> Path:
        return copytree(path, tmp_path / path.name)

    return copied
