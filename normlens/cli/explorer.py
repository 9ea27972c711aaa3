"""``normlens app``: the explorer in the browser."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from normlens.errors import LoadError, UsageError
from normlens.resources import app_path
from normlens.workbench.launch import DEFAULT_MODELS, Launch
from normlens.workbench.sources import Sources

ADDRESS = "127.0.0.1"
PATIENCE_SECONDS = 60.0
POLL_SECONDS = 0.1
UPLOAD_MEGABYTES = 20
Flag = Parameter(negative=())


def register(app: App) -> None:
    """Add the command."""
    app.command(explorer, name="app")


def explorer(
    *models: str,
    results: Path | None = None,
    model_root: Path | None = None,
    runs: Path | None = None,
    port: int = 8501,
    online: Annotated[bool, Flag] = False,
    browser: Annotated[bool, Flag] = False,
) -> int:
    """Compare models side by side in the browser.

    It serves this machine alone, at 127.0.0.1, and sends nothing anywhere. Over ssh, forward
    the port: `ssh -L 8501:127.0.0.1:8501 host`. Ctrl+C ends it; what it computed stays.

    Examples: `normlens app` opens on a bundled pair with its results,
    `normlens app books-ln runs/mine/model --results out/store --model-root runs`.

    Parameters
    ----------
    models
        Models to show first, the reference first; at most four.
    results
        Store of results, as `--store` of other commands; by default theirs, in the user cache.
    model_root
        Directory below which the explorer may open models.
    runs
        Directory of training runs to look at.
    port
        Port at 127.0.0.1.
    online
        Allow hub ids, which are downloaded.
    browser
        Open the browser once the explorer is up.
    """
    if importlib.util.find_spec("streamlit") is None:
        raise UsageError("the explorer needs streamlit: pip install 'normlens[app]'")
    for option, directory in (("--model-root", model_root), ("--runs", runs)):
        if directory is not None and not directory.is_dir():
            raise UsageError(f"{option} {directory} is not a directory")
    launch = Launch(_checked(models, model_root), results, model_root, online, runs)
    _require_free(port)
    return _serve(launch, port, browser=browser)


def _checked(models: Sequence[str], model_root: Path | None) -> tuple[str, ...]:
    if len(models) > 4:
        raise UsageError(f"{len(models)} models are named; the explorer shows at most 4")
    checked = [
        str(Path(model).resolve())
        if Path(model).is_dir()
        # Named here, a hub id is asked for.
        else (Sources(model_root, online=True).resolve(model) and model)
        for model in models
    ]
    return tuple(checked) or DEFAULT_MODELS


def _require_free(port: int) -> None:
    if not 0 < port < 65536:
        raise UsageError(f"--port is {port}; give 1 to 65535")
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: a port whose last connections are still closing is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ADDRESS, port))
        except OSError as error:
            raise UsageError(
                f"port {port} cannot be used ({error.strerror}); another explorer may be running: "
                f"open http://{ADDRESS}:{port}, or choose another --port"
            ) from error


def _serve(launch: Launch, port: int, *, browser: bool) -> int:
    command = [
        sys.executable, "-m", "normlens.workbench.serve", "run", str(app_path("main.py")),
        "--server.headless", "true",
        "--server.address", ADDRESS,
        "--server.port", str(port),
        "--server.fileWatcherType", "none",
        "--server.maxUploadSize", str(UPLOAD_MEGABYTES),
        "--browser.gatherUsageStats", "false",
    ]  # fmt: skip
    address = f"http://{ADDRESS}:{port}"
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    child = subprocess.Popen(
        command, env={**os.environ, **launch.environment()}, stdout=subprocess.DEVNULL
    )
    try:
        _wait_until_up(child, address)
        print(f"normlens explorer: {address} (Ctrl+C ends it)", flush=True)
        if browser:
            webbrowser.open(address)
        return LoadError.exit_code if child.wait() else 0
    except KeyboardInterrupt:
        return 0
    finally:
        _end(child)
        signal.signal(signal.SIGTERM, before)


def _wait_until_up(child: subprocess.Popen[bytes], address: str) -> None:
    # A proxy of the environment must not stand between two processes of one machine.
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if child.poll() is not None:
            raise LoadError(f"the explorer ended with code {child.returncode}; see above")
        try:
            with direct.open(f"{address}/_stcore/health", timeout=1) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            time.sleep(POLL_SECONDS)
    raise LoadError(f"the explorer did not answer within {PATIENCE_SECONDS:.0f} s at {address}")


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(timeout=5)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
