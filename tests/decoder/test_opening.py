"""Opening decoders: every norm found and verified, saved and read back, split into components."""

from __future__ import annotations

import functools
import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from normlens.decoder import PLACEMENTS
from normlens.errors import LoadError, NotApplicable
from normlens.models import open_model
from normlens.models.components import ComponentView, component_view
from normlens.models.components_guard import verify_components
from normlens.models.components_read import Components, read_components, sum_components
from normlens.models.export import write_model
from normlens.models.families import composed, family_of
from normlens.models.lens import Lens
from normlens.norms import NormKind
from normlens.tolerances import for_dtype
from tests.decoder.tiny_decoders import (
    IDENTITY,
    LAYER_NORM,
    RMS_NORM,
    VARIANTS,
    tiny_decoder,
    tokens,
)

pytestmark = pytest.mark.components

SITES = {
    "pre": "pre_attn pre_mlp | final",
    "post": "post_attn* post_mlp*",
    "sandwich": "pre_attn post_attn pre_mlp post_mlp | final",
    "peri": "embed* | pre_attn post_attn pre_mlp post_mlp | final",
    "hybrid": "q k v pre_mlp* | final",
    "deepnorm": "post_attn* post_mlp*",
    "depth_scaled_sandwich": "pre_attn post_attn pre_mlp post_mlp | final",
    "every_linear": "pre_attn pre_o pre_mlp pre_down | final",
    "sdd": "q k v post_attn up post_mlp | final",
    "sdd-llama": "q k v post_attn up gate post_mlp | final",
    "ngpt": "embed* | q k post_attn exit_attn* post_mlp exit_mlp*",
    "qk-norm": "pre_attn q k pre_mlp | final",
    "embedding-norm": "embed* | pre_attn pre_mlp | final",
    "no-final-norm": "pre_attn pre_mlp",
}
"""Norms of a block in order of execution, * on the stream, between | those outside blocks."""

ON_STREAM = ("post", "hybrid", "deepnorm", "ngpt")
SPLIT = [v for v in VARIANTS if not v.startswith(ON_STREAM) and v != "no-final-norm"]


@functools.cache
def opened(variant: str) -> Lens:
    return open_model(tiny_decoder(variant), tokenizer=None, name=variant)


@pytest.mark.parametrize("variant", SITES)
def test_every_norm_is_found_where_it_stands(variant: str) -> None:
    parts = [part.split() for part in SITES[variant].split("|")]
    before = parts.pop(0) if parts[0] == ["embed*"] else []
    block, after = parts[0], parts[1] if len(parts) > 1 else []
    expected = [*before, *(f"{i}.{role}" for i in range(2) for role in block), *after]
    found = [site.label + "*" * site.on_stream for site in opened(variant).sites]
    assert found == expected


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_norm_is_verified(variant: str) -> None:
    lens = opened(variant)
    kinds = {site.spec.kind for site in lens.sites}
    assert kinds <= {NormKind(fields["kind"]) for fields in given_norms(lens)}
    for site, check in zip(lens.sites, lens.verification, strict=True):
        assert check.passed, site.label
    factors = {site.layer: site.spec.factor for site in lens.sites if site.layer is not None}
    scaled = lens.model.config.depth_factor == "inverse_sqrt"
    assert factors == {0: 1.0, 1: 2**-0.5 if scaled else 1.0}


def given_norms(lens: Lens) -> list[dict[str, object]]:
    config = lens.model.config
    fields = (config.norm, config.final_norm, config.qk_norm, config.embedding_norm)
    return [one for one in fields if one is not None]


@pytest.mark.parametrize("kind", [kind.value for kind in NormKind if kind is not NormKind.OPAQUE])
def test_every_kind_in_every_place(kind: str) -> None:
    fields: dict[str, object] = {"kind": kind}
    if kind == "fixed_scale":
        fields["fixed_scale"] = 1.7
    if kind not in ("identity", "simple_rms_norm"):
        fields["gain"] = True
    for placement in PLACEMENTS:
        if PLACEMENTS[placement].depth_scaled and "gain" not in fields:
            continue
        model = tiny_decoder("pre", placement=placement, norm=fields, gated=True)
        lens = open_model(model, tokenizer=None)
        assert {site.spec.kind.value for site in lens.sites} == {kind}
        assert all(check.passed for check in lens.verification), placement


def test_every_layout_has_its_row_and_they_differ() -> None:
    seen = set()
    choices = ((False, True), ("learned", "rotary"), ("pre", "ngpt"), (RMS_NORM, None))
    for gated, positions, placement, final in itertools.product(*choices):
        lens = open_model(
            tiny_decoder(
                "pre", gated=gated, positions=positions, placement=placement, final_norm=final
            ),
            tokenizer=None,
        )
        seen.add(composed.ROWS.index(family_of(lens.model)))
    assert seen == set(range(len(composed.ROWS)))


def test_two_norms_of_one_label_are_refused() -> None:
    model = tiny_decoder("pre")
    model.model.layers[0].attn.entry_norm = torch.nn.LayerNorm(32)
    with pytest.raises(LoadError, match=r"are both 0\.pre_attn"):
        open_model(model, tokenizer=None)


@pytest.mark.parametrize("variant", VARIANTS)
def test_written_as_a_plain_hugging_face_model(variant: str, tmp_path: Path) -> None:
    lens = opened(variant)
    write_model(lens.model, None, tmp_path / "model", storage=torch.float32)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["model_type"] == "normlens_decoder"
    assert config["architectures"] == ["DecoderForCausalLM"]
    again = open_model(tmp_path / "model", tokenizer=None)
    assert again.identity.weights_sha256 == lens.identity.weights_sha256
    assert [s.spec for s in again.sites] == [s.spec for s in lens.sites]
    with torch.no_grad():
        logits = [one.model(input_ids=tokens()).logits for one in (lens, again)]
    assert torch.equal(*logits)


def test_untrained_is_another_draw_of_the_same_config(tmp_path: Path) -> None:
    lens = opened("sandwich")
    write_model(lens.model, None, tmp_path / "model")
    fresh = open_model(f"untrained:{tmp_path / 'model'}", tokenizer=None)
    assert [s.label for s in fresh.sites] == [s.label for s in lens.sites]
    assert fresh.identity.weights_sha256 != lens.identity.weights_sha256


@pytest.mark.parametrize("variant", SPLIT)
def test_components_add_up(variant: str) -> None:
    lens = opened(variant)
    view = component_view(lens)
    assert verify_components(lens, view) == 0.0
    read = read_components(view, tokens())
    error = sum_error(view, read)
    assert error <= for_dtype("component_sum", "float32")
    assert sum_error(view, replace(read, z=tuple(z.flip(-2) for z in read.z))) > 100 * error
    has_embedding_norm = any(site.role.value == "embed" for site in lens.sites)
    learned = lens.model.config.positions == "learned"
    assert (view.position_embedding is not None) == (learned and not has_embedding_norm)


def sum_error(view: ComponentView, read: Components) -> float:
    total, absolute = sum_components(view, read)
    return ((total - read.residuals[-1]).abs() / absolute.clamp(min=1)).max().item()


@pytest.mark.parametrize("variant", ["scaled-sandwich", "norm-free"])
def test_a_forgotten_branch_scale_breaks_the_sum(variant: str) -> None:
    view = component_view(opened(variant))
    read = read_components(view, tokens())
    layers = []
    for layer in view.layers:
        post = layer.post_attention
        assert post is not None and post.gamma is not None
        without = replace(post, gamma=torch.ones_like(post.gamma), beta=None)
        layers.append(replace(layer, post_attention=without))
    assert sum_error(replace(view, layers=tuple(layers)), read) > 1e-2


@pytest.mark.parametrize("variant", ON_STREAM)
def test_norms_on_the_stream_have_no_components(variant: str) -> None:
    with pytest.raises(NotApplicable, match="stand on the residual stream"):
        component_view(opened(variant))


def test_without_a_final_norm_there_are_no_components() -> None:
    with pytest.raises(NotApplicable, match="no norm stands between its residual stream"):
        component_view(opened("no-final-norm"))


@pytest.mark.parametrize("kind", ["dyt", "eln"])
def test_heads_behind_an_elementwise_map_have_no_components(kind: str) -> None:
    norm = {"kind": kind, "gain": True}
    model = tiny_decoder("sandwich", norm=norm, final_norm=LAYER_NORM)
    with pytest.raises(NotApplicable, match=f"norm after attention .* is {kind}"):
        component_view(open_model(model, tokenizer=None))


def test_identities_on_the_stream_rescale_nothing() -> None:
    model = tiny_decoder("post", norm=IDENTITY, final_norm=LAYER_NORM)
    lens = open_model(model, tokenizer=None)
    assert verify_components(lens, component_view(lens)) == 0.0


def test_patterns_are_refused_in_words() -> None:
    with pytest.raises(NotApplicable, match="TransformerLens does not know this architecture"):
        component_view(opened("pre"), patterns=True)
