from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from normlens.capture.protocol import Finding
from normlens.catalog.prompt_attribution import PROMPT_ATTRIBUTION, PromptAttributionParameters
from normlens.errors import NotApplicable, UsageError
from normlens.kernels.prompt_attribution import KERNEL
from normlens.kernels.token_strings import token_string
from normlens.models.lens import Lens
from normlens.text.encoding import encode_prompt, token_ids
from tests.kernels.attribution_models import (
    MODELS,
    batches_of,
    context_of,
    lens_of,
    observe,
    tokenizer,
    vectors,
    weights_of,
)
from tests.oracles import direct_effect as oracle

PROMPT = "Alice took the key and opened the door, and then she"


def finding(lens: Lens, **options: str) -> Finding:
    parameters = PromptAttributionParameters(prompt=PROMPT, **options)
    corpus = encode_prompt(PROMPT, tokenizer(), context=64)
    context = context_of(lens, corpus, parameters)
    state = KERNEL.init(context)
    (batch,) = batches_of(corpus, 16)
    KERNEL.update(state, batch, observe(lens, batch.ids), context)
    return KERNEL.finish(state, context)


def ids_and_logits(lens: Lens) -> tuple[torch.Tensor, torch.Tensor]:
    ids = encode_prompt(PROMPT, tokenizer(), context=64).ids
    logits = observe(lens, ids).logits
    assert logits is not None
    return ids[0], logits[0].double()


@pytest.mark.parametrize("name", MODELS)
def test_waterfall_equals_the_oracle_and_adds_up(name: str) -> None:
    lens = lens_of(MODELS[name]().double())
    found = finding(lens, target=" was")
    table, positions = found.tables["waterfall"], found.tables["positions"]
    ids, logits = ids_and_logits(lens)
    was = token_ids(tokenizer(), " was")
    targets = torch.cat([ids[1:], torch.tensor(was)])
    centred = logits.gather(-1, targets[:, None])[:, 0] - logits.mean(-1)
    assert positions["logit"].tolist() == pytest.approx(centred.tolist(), abs=1e-10)
    # Llama's norm computes in float32 whatever the model's dtype.
    rounding = 1e-10 if lens.sites[-1].spec.compute_dtype == "input" else 1e-5
    assert positions["sum"].tolist() == pytest.approx(centred.tolist(), abs=rounding)
    sums = table.groupby("position")["dla"].sum()
    assert sums.tolist() == pytest.approx(positions["sum"].tolist(), abs=1e-10)
    probability = logits.softmax(-1).gather(-1, targets[:, None])[:, 0]
    assert positions["probability"].tolist() == pytest.approx(probability.tolist(), abs=1e-12)

    weights = weights_of(lens)
    spec = weights.final.spec
    norm = oracle.Norm(
        spec.kind.value, spec.eps or 0.0, spec.fixed_scale or 1.0, weights.gamma, weights.beta
    )
    components = observe(lens, ids[None]).components
    assert components is not None
    scale = norm.scale(components.residual)[0, :, 0]
    assert positions["scale"].tolist() == pytest.approx(scale.tolist())
    for component, c in vectors(components, weights).items():
        dla, effect = oracle.effects(c, components.residual, norm, weights.w_u, None, targets[None])
        rows = table[table["component"] == component]
        assert rows["position"].tolist() == list(range(len(ids)))
        assert rows["dla"].tolist() == pytest.approx(dla[0].tolist(), abs=1e-10)
        assert rows["direct_effect"].tolist() == pytest.approx(effect[0].tolist(), abs=1e-10)
    assert [check.passed for check in found.checks] == [True]
    headline = {h.name: h.value for h in found.headline}
    assert headline["target_logit"] == positions["logit"].iloc[-1]
    assert (headline["nmae_heads"] > 1e-3) == spec.kind.has_live_scale


def test_tables_are_as_declared() -> None:
    found = finding(lens_of(MODELS["layer_norm"]()))
    for schema in PROMPT_ATTRIBUTION.tables:
        assert list(found.tables[schema.name]) == [c.name for c in schema.columns]


def test_constants_have_rows_without_direct_effects() -> None:
    table = finding(lens_of(MODELS["layer_norm"]())).tables["waterfall"]
    constants = table[table["type"].isin(["norm_bias", "unembed_bias"])]
    assert set(constants["component"]) == {"norm_bias"}
    assert constants["dla"].notna().all() and (constants["dla"] != 0).any()
    assert constants[["direct_effect", "self_repair"]].isna().all().all()
    others = table.drop(constants.index)
    assert others[["dla", "direct_effect", "self_repair"]].notna().all().all()
    rms = finding(lens_of(MODELS["rms_norm"]())).tables["waterfall"]
    assert not {"norm_bias", "unembed_bias", "attn_bias"} & set(rms["type"])
    assert "pos_embed" not in set(rms["component"])


def test_the_top_prediction_is_the_target_where_none_is_given() -> None:
    lens = lens_of(MODELS["layer_norm"]())
    positions = finding(lens).tables["positions"]
    ids, logits = ids_and_logits(lens)
    top = int(logits[-1].argmax())
    assert positions["target"].iloc[-1] == token_string(tokenizer(), top)
    assert positions["probability"].iloc[-1] == pytest.approx(float(logits[-1].softmax(-1)[top]))
    shown = [token_string(tokenizer(), token) for token in ids.tolist()]
    assert positions["token"].tolist() == shown
    assert positions["target"].tolist()[:-1] == shown[1:]
    assert "".join(shown) == "<|bos|>" + PROMPT


def test_against_reads_a_difference_at_the_last_position() -> None:
    lens = lens_of(MODELS["layer_norm"]().double())
    plain = finding(lens, target=" he").tables
    against = finding(lens, target=" he", against=" she").tables
    _, logits = ids_and_logits(lens)
    he, she = (token_ids(tokenizer(), text)[0] for text in (" he", " she"))
    last = against["positions"].iloc[-1]
    assert last["logit"] == pytest.approx(float(logits[-1, he] - logits[-1, she]), abs=1e-10)
    assert last["sum"] == pytest.approx(last["logit"], abs=1e-10)
    assert last["target"] == " he −  she"
    first = plain["positions"].index[:-1]
    assert against["positions"].loc[first].equals(plain["positions"].loc[first])


def test_a_target_of_several_tokens_is_refused_with_its_pieces() -> None:
    lens = lens_of(MODELS["layer_norm"]())
    with pytest.raises(UsageError, match=r"target ' unhappily ever' is \d tokens \(' un"):
        finding(lens, target=" unhappily ever")
    with pytest.raises(UsageError, match="against"):
        finding(lens, target=" he", against="xyzzyx")


def test_the_refusal_proposes_a_leading_space_where_that_helps() -> None:
    lens, tok = lens_of(MODELS["layer_norm"]()), tokenizer()
    words = ("together", "morning", "something", "himself", "house", "looked", "without")
    word = next(
        w for w in words if len(token_ids(tok, w)) > 1 and len(token_ids(tok, " " + w)) == 1
    )
    with pytest.raises(UsageError, match=f"' {word}', with a leading space, is one"):
        finding(lens, target=word)


def test_a_model_without_tokenizer_is_not_applicable() -> None:
    lens = lens_of(MODELS["layer_norm"]())
    corpus = encode_prompt(PROMPT, tokenizer(), context=64)
    context = context_of(lens, corpus, PromptAttributionParameters())
    with pytest.raises(NotApplicable, match="tokenizer"):
        KERNEL.init(replace(context, lens=replace(lens, tokenizer=None)))


def test_part_of_a_character_is_shown_as_the_vocabulary_writes_it() -> None:
    tok = tokenizer()
    ids = token_ids(tok, "日")
    assert len(ids) > 1
    shown = [token_string(tok, token) for token in ids]
    assert "�" not in "".join(shown) and all(shown)
    assert token_string(tok, 0) == tok.bos_token
