"""Making the results that come with normlens: ``make results``.

``python -m normlens.workbench.bundled_make data/results``: what is there and still current is
kept, what is missing is computed, what no longer belongs there is removed.
"""

from __future__ import annotations

import argparse
import shutil
from functools import partial
from pathlib import Path

from normlens import catalog
from normlens.models.recorded import open_recorded
from normlens.records import Records
from normlens.side_by_side import compare
from normlens.text.documents import read_documents
from normlens.workbench.bundled import CORPUS, PAIR, find_bundled

COMMAND = "normlens compare books-ln books-lnfree --sequences 128 --out OUT"


def make_bundled(root: Path) -> None:
    """Run what is missing below ``root``, and remove what is not current.

    Raises:
        NormlensError: a model cannot be opened, or ``root`` not written.
    """
    records = Records(root)
    compare(
        {choice.name: partial(open_recorded, choice.source, records) for choice in PAIR},
        read_documents(CORPUS.text),
        [analysis.name for analysis in catalog.ALL],
        sequences=CORPUS.sequences,
        bos=CORPUS.bos,
        store=root,
        command=COMMAND,
    )
    for record in list(records.models()):
        records.save_model(record.portable())
    kept = {path for found in find_bundled(root).values() for path in found.paths}
    for path in (root / "results").iterdir():
        if path not in kept:
            shutil.rmtree(path)


def _main() -> None:
    parser = argparse.ArgumentParser(description="Make the results that come with normlens.")
    parser.add_argument("root", type=Path, help="directory of the results, data/results")
    make_bundled(parser.parse_args().root)


if __name__ == "__main__":
    _main()
