"""``normlens app`` refuses early and in one line; ``--progress-file`` follows a run."""

from __future__ import annotations

import importlib.util
import json
import signal
import socket
from pathlib import Path

import pytest

from normlens.cli import run as run_module
from normlens.cli.app import run_command
from tests.workbench.small_store import CONTEXT, write_models, write_text


def fails(capsys: pytest.CaptureFixture[str], words: list[str], code: int) -> str:
    assert run_command(words) == code
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1, captured.err
    return captured.err


def test_a_taken_port_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"port {port} cannot be used" in fails(capsys, ["app", "--port", str(port)], 2)
    assert "give 1 to 65535" in fails(capsys, ["app", "--port", "70000"], 2)


def test_wrong_models_and_directories_say_so(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert "did you mean books-ln" in fails(capsys, ["app", "books-lx"], 3)
    assert "at most 4" in fails(capsys, ["app", *["books-ln"] * 5], 2)
    missing = str(tmp_path / "none")
    assert "--model-root" in fails(capsys, ["app", "--model-root", missing], 2)


def test_without_streamlit_it_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    assert "pip install 'normlens[app]'" in fails(capsys, ["app"], 2)


def test_a_run_is_followed_in_a_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_models(tmp_path / "models")
    text = write_text(tmp_path / "text.txt")
    file = tmp_path / "progress.json"
    words = [
        "run", "scale", str(tmp_path / "models" / "ln"), "--text", str(text), "--sequences", "5",
        "--context", str(CONTEXT), "--store", str(tmp_path / "store"), "--json",
        "--progress-file", str(file),
    ]  # fmt: skip
    handler = signal.getsignal(signal.SIGTERM)
    assert run_command(words) == 0
    progress = json.loads(file.read_text())
    assert (progress["state"], progress["model"], progress["done"]) == ("done", "ln", 5)
    assert signal.getsignal(signal.SIGTERM) is handler

    (tmp_path / "models" / "ln" / "model.safetensors").write_bytes(b"damaged")
    capsys.readouterr()
    message = fails(capsys, words, 3)
    progress = json.loads(file.read_text())
    assert progress["state"] == "failed" and progress["message"] in message

    monkeypatch.setattr(run_module.sys, "argv", ["normlens", *words])
    assert "--progress-file" not in run_module.command_line()
    assert run_module.command_line().endswith("--json")
