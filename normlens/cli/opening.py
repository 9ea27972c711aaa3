"""From options to an opened model."""

from __future__ import annotations

from pathlib import Path

from normlens.cli.options import ModelOptions
from normlens.models.lens import Lens


def display_name(source: str) -> str:
    """The name a model has in tables: a directory's own, else the id."""
    return Path(source).name if Path(source).is_dir() else source


def open_with(source: str, options: ModelOptions) -> Lens:
    """Open ``source`` as the options say."""
    import torch

    from normlens.models import open_model

    if options.threads:
        torch.set_num_threads(options.threads)
    return open_model(
        source,
        device=options.device,
        dtype=options.dtype,
        revision=options.revision,
        convert=options.convert,
    )
