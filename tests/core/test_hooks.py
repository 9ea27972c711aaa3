"""The hook manager restores, counts and excludes."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor, nn

from normlens.errors import HookMismatch
from normlens.hooks import Hook, hook_count, hooked


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.Linear(3, 2))


def test_reads_inputs_and_outputs_and_leaves_nothing() -> None:
    net, x = model(), torch.randn(4, 3)
    seen: dict[str, Tensor] = {}

    def keep(name: str):
        def record(value: Tensor) -> None:
            seen[name] = value

        return record

    with hooked(net, [Hook(net[1], "input", keep("in")), Hook(net[1], "output", keep("out"))]):
        net(x)
    torch.testing.assert_close(seen["in"], net[0](x))
    torch.testing.assert_close(seen["out"], net[1](net[0](x)))
    assert hook_count(net) == 0


def test_replaces_values() -> None:
    net, x = model(), torch.randn(4, 3)
    with hooked(net, [Hook(net[1], "output", torch.zeros_like)]):
        changed = net(x)
    torch.testing.assert_close(changed, net[2].bias.expand(4, 2))
    assert not torch.allclose(net(x), changed), "the hook must have made the difference"


@pytest.mark.parametrize("runs", [0, 2])
def test_another_number_of_calls_is_an_error(runs: int) -> None:
    net = model()
    with (
        pytest.raises(HookMismatch, match=f"final fired {runs} time"),
        hooked(net, [Hook(net[1], "input", lambda _: None, "final")]),
    ):
        for _ in range(runs):
            net(torch.randn(1, 3))
    assert hook_count(net) == 0


def test_removed_when_the_block_fails() -> None:
    net = model()
    with (
        pytest.raises(RuntimeError, match="inside"),
        hooked(net, [Hook(net[1], "input", lambda _: None)]),
    ):
        raise RuntimeError("inside")
    assert hook_count(net) == 0


def test_one_thread_at_a_time() -> None:
    net = model()
    entered, release = threading.Event(), threading.Event()
    order: list[str] = []

    def first() -> None:
        with hooked(net, [Hook(net[1], "input", lambda _: None)]):
            entered.set()
            release.wait(10)
            net(torch.randn(1, 3))
            order.append("first")

    def second() -> None:
        entered.wait(10)
        release.set()
        with hooked(net, [Hook(net[1], "input", lambda _: None)]):
            net(torch.randn(1, 3))
            order.append("second")

    threads = [threading.Thread(target=f) for f in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert order == ["first", "second"]
