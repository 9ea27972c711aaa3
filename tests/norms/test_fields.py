"""Norms of a config: what is filled in, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from normlens.errors import UsageError
from normlens.norms import KINDS, NormKind, NormSpec


def test_a_layer_norm_of_a_config() -> None:
    fields = {"kind": "layer_norm", "eps": 3e-4, "gain": True, "bias": True}
    assert NormSpec.of(fields, 6) == NormSpec(
        NormKind.LAYER_NORM, 6, eps=3e-4, centred=True, gain=True, bias=True
    )


def test_what_a_config_leaves_out_is_the_kinds_own() -> None:
    assert NormSpec.of({"kind": "l2_norm"}, 6).eps == 1e-12
    assert NormSpec.of({"kind": "eln"}, 6) == NormSpec(NormKind.ELN, 6, alpha=0.5)
    assert NormSpec.of({"kind": "identity"}, 6) == NormSpec(NormKind.IDENTITY, 6)


def test_lists_of_json_become_tuples() -> None:
    spec = NormSpec.of({"kind": "fixed_scale", "position_scales": [2, 1.5]}, 6)
    assert spec.position_scales == (2, 1.5)
    assert spec.fixed_scale is None


@pytest.mark.parametrize("kind", [k for k in KINDS if k is not NormKind.FIXED_SCALE], ids=str)
def test_every_kind_can_be_named_alone(kind: NormKind) -> None:
    spec = NormSpec.of({"kind": kind.value}, 6)
    assert (spec.eps is not None, spec.alpha is not None) == (kind.has_eps, kind.has_alpha)
    given = {name: value for name, value in vars(spec).items() if name != "width"}
    assert NormSpec.of(given, 6) == spec


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, "kind"),
        ({"kind": "opaque"}, "kind"),
        ({"kind": "layernorm"}, "kind"),
        ({"kind": "layer_norm", "epsilon": 1e-5}, "'epsilon'"),
        ({"kind": "layer_norm", "width": 6}, "'width'"),
        ({"kind": "layer_norm", "eps": "1e-5"}, "eps"),
        ({"kind": "layer_norm", "eps": -1e-5}, "eps"),
        ({"kind": "layer_norm", "eps": float("nan")}, "eps"),
        ({"kind": "layer_norm", "eps": True}, "eps"),
        ({"kind": "layer_norm", "eps": None}, "eps"),
        ({"kind": "layer_norm", "gain": 1}, "gain"),
        ({"kind": "layer_norm", "centred": False}, "centred"),
        ({"kind": "rms_norm", "centred": True}, "centred"),
        ({"kind": "rms_norm", "unit_offset": True}, "unit_offset"),
        ({"kind": "l2_norm", "gain": True, "unit_offset": True}, "unit_offset"),
        ({"kind": "rms_norm", "alpha": 0.5}, "alpha"),
        ({"kind": "dyt", "eps": 1e-5}, "eps"),
        ({"kind": "dyt", "alpha": None}, "alpha"),
        ({"kind": "simple_rms_norm", "gain": True}, "gain"),
        ({"kind": "identity", "bias": True}, "bias"),
        ({"kind": "fixed_scale"}, "fixed_scale"),
        ({"kind": "fixed_scale", "fixed_scale": 0}, "fixed_scale"),
        ({"kind": "fixed_scale", "fixed_scale": 1.0, "position_scales": [1.0]}, "fixed_scale"),
        ({"kind": "fixed_scale", "position_scales": []}, "position_scales"),
        ({"kind": "fixed_scale", "position_scales": [1.0, -1.0]}, "position_scales"),
        ({"kind": "rms_norm", "factor": 0}, "factor"),
        ({"kind": "rms_norm", "compute_dtype": 32}, "compute_dtype"),
    ],
    ids=str,
)
def test_a_wrong_field_is_named(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=f"field {named}"):
        NormSpec.of(fields, 6)
