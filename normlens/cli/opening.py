"""From options to an opened model."""

from __future__ import annotations

from pathlib import Path

from normlens.cli.options import ModelOptions
from normlens.models.lens import Lens
from normlens.workbench.choices import display_name

__all__ = ["display_name", "open_with"]


def open_with(source: str, options: ModelOptions, store: Path | None = None) -> Lens:
    """Open ``source`` as the options say, noting in ``store`` what it is."""
    import torch

    from normlens.models.recorded import open_recorded
    from normlens.records import Records

    if options.threads:
        torch.set_num_threads(options.threads)
    return open_recorded(
        source,
        Records(store),
        device=options.device,
        dtype=options.dtype,
        revision=options.revision,
        convert=options.convert,
    )
