"""What is seen over depth, on every architecture: checks hold, or a reason is given."""

from __future__ import annotations

import pytest
import torch

from normlens import runner
from normlens.hooks import hook_count
from normlens.models.identity import weights_sha256
from normlens.models.lens import Role
from tests.architectures import ARCHITECTURES
from tests.kernels.harness import lens_of, random_rows, sequences_of

pytestmark = pytest.mark.components


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_checks_hold_or_a_reason_is_given(name: str) -> None:
    lens = lens_of(ARCHITECTURES[name](), name)
    rows = random_rows(3, (9, 4, 7))
    residual, branches, gradients = runner.run(
        ["residual", "branches", "gradients"], lens, sequences_of(rows, extra=2), batch_size=2
    )
    assert not residual.not_applicable
    encoder = name.startswith("bert")
    without_view = encoder or name == "opt-post"
    assert bool(branches.not_applicable) == without_view
    assert bool(gradients.not_applicable) == encoder
    for found in (residual, branches, gradients):
        assert found.passed, [check for check in found.checks[name] if not check.passed]
        if not found.not_applicable:
            table = next(iter(found.tables.values()))
            assert len(table)
            assert (table["status"] == "ok").all()
    if any(site.role is Role.FINAL for site in lens.sites):
        assert residual.checks[name]
    if not without_view:
        assert branches.checks[name]
    if not encoder:
        assert gradients.checks[name]
    assert hook_count(lens.model) == 0
    assert weights_sha256(lens.model) == lens.identity.weights_sha256
    assert not any(p.requires_grad for p in lens.model.parameters())
    assert torch.is_grad_enabled()
