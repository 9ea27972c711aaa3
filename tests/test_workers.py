"""Tests that share a server, a fork or a heavy start share a worker."""

from __future__ import annotations

import pytest


@pytest.mark.xdist_group("together")
def test_groups_reach_the_scheduler(request: pytest.FixtureRequest) -> None:
    if getattr(request.config.option, "loadgroup", False):
        assert request.node.nodeid.endswith("@together")
