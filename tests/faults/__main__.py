"""Plant every known bug in a copy of the package and see that the named tests fail.

    python -m tests.faults            all
    python -m tests.faults kl-reversed [...]

A fault is an exact replacement in one file. It survives when its tests stay green, which
means that nothing would notice that bug; then the exit code is 1.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from tests.faults.catalog import FAULTS, Fault

ROOT = Path(__file__).resolve().parents[2]
NO_TESTS_RAN = 5


def main(names: list[str]) -> int:
    chosen = [fault for fault in FAULTS if not names or fault.name in names]
    unknown = set(names) - {fault.name for fault in FAULTS}
    if unknown:
        print(f"no fault {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    console = Console(highlight=False)
    survivors = 0
    for fault in chosen:
        with tempfile.TemporaryDirectory() as scratch:
            code = run_with(fault, Path(scratch))
        caught = code not in (0, NO_TESTS_RAN)
        survivors += not caught
        console.print(f"{'red ' if caught else 'ALIVE'}  {fault.name}: {fault.what}")
    console.print(f"{len(chosen) - survivors} of {len(chosen)} planted bugs turned a test red")
    return 1 if survivors else 0


def run_with(fault: Fault, scratch: Path) -> int:
    for part in ("normlens", "tests"):
        shutil.copytree(ROOT / part, scratch / part, ignore=shutil.ignore_patterns("__pycache__"))
    for part in ("data", "app"):
        if (ROOT / part).is_dir():
            (scratch / part).symlink_to(ROOT / part)
    shutil.copy(ROOT / "pyproject.toml", scratch)
    target = scratch / fault.file
    source = target.read_text(encoding="utf-8")
    count = source.count(fault.old)
    if count != 1:
        raise SystemExit(f"fault {fault.name}: {count} places in {fault.file} match, expected 1")
    target.write_text(source.replace(fault.old, fault.new), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *fault.tests],
        cwd=scratch,
        env={**os.environ, "PYTHONPATH": str(scratch)},
        capture_output=True,
        check=False,
    )
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
