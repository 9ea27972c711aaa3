"""A job that does not end when asked, with a child that does not either."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = os.fork()
    if child:
        (Path(sys.argv[1]) / "pids").write_text(f"{os.getpid()} {child}")
    time.sleep(120)
