"""The bundled held-out excerpts as token windows."""

from __future__ import annotations

import json

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from normlens.resources import data_path


def held_out_windows(
    tokenizer: PreTrainedTokenizerBase, context: int
) -> Int[Tensor, "sequence context"]:
    """Every whole window of the held-out excerpts, BOS first, in document order."""
    windows = []
    for line in data_path("text", "books-held-out.jsonl").read_text(encoding="utf-8").splitlines():
        ids = tokenizer(json.loads(line)["text"], add_special_tokens=False, verbose=False)[
            "input_ids"
        ]
        whole = len(ids) // (context - 1)
        windows.append(np.asarray(ids[: whole * (context - 1)]).reshape(whole, context - 1))
    rows = np.pad(np.concatenate(windows), ((0, 0), (1, 0)), constant_values=tokenizer.bos_token_id)
    return torch.from_numpy(rows.astype(np.int64))
