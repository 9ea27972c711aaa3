"""The bugs that are planted: mistakes seen in good projects."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """Replace ``old`` by ``new`` in ``file``; one of ``tests`` must fail."""

    name: str
    what: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


FAULTS = (
    Fault(
        "gain-dropped",
        "the reference norm forgets its gain",
        "normlens/norms/reference.py",
        "y = xhat if gamma is None else xhat * gamma.double()",
        "y = xhat",
        ("tests/norms",),
    ),
    Fault(
        "eps-dropped",
        "the scale forgets eps",
        "normlens/norms/reference.py",
        "return (mean_square + (spec.eps or 0.0)).sqrt()",
        "return mean_square.sqrt()",
        ("tests/norms",),
    ),
    Fault(
        "jvp-without-scale",
        "the Jacobian treats the live scale as a constant",
        "normlens/norms/reference.py",
        "    if spec.kind.has_live_scale:\n        out = out -",
        "    if False:\n        out = out -",
        ("tests/norms",),
    ),
    Fault(
        "unbiased-variance",
        "the input's variance is the unbiased one",
        "normlens/capture/forward.py",
        "torch.var_mean(x, -1, correction=0)",
        "torch.var_mean(x, -1, correction=1)",
        ("tests/capture",),
    ),
    Fault(
        "mask-ignored",
        "padding counts as tokens",
        "normlens/capture/batches.py",
        "rest=(mask & ~first).to(device)",
        "rest=(~first).to(device)",
        ("tests/capture",),
    ),
    Fault(
        "first-token-not-apart",
        "the first token counts among the rest",
        "normlens/capture/batches.py",
        "rest=(mask & ~first).to(device)",
        "rest=mask.to(device)",
        ("tests/capture",),
    ),
    Fault(
        "shards-overwrite",
        "merging keeps the last shard only",
        "normlens/capture/state.py",
        "                return a + b",
        "                return b",
        ("tests/capture",),
    ),
    Fault(
        "store-unchecked",
        "shards of another computation are taken",
        "normlens/capture/state.py",
        "            if meta.get(key) != value:",
        "            if False:",
        ("tests/capture",),
    ),
    Fault(
        "target-off-by-one",
        "the loss is against the present token",
        "normlens/kernels/predictions.py",
        "token = batch.ids[sequence, position + 1]",
        "token = batch.ids[sequence, position]",
        ("tests/kernels/test_output.py",),
    ),
    Fault(
        "entropy-sign",
        "the entropy adds the expected logit",
        "normlens/kernels/predictions.py",
        "entropy = log_total - weights.mul_(shifted).sum(-1) / total",
        "entropy = log_total + weights.mul_(shifted).sum(-1) / total",
        ("tests/kernels/test_output.py",),
    ),
    Fault(
        "kl-without-entropy",
        "the divergence is a cross-entropy",
        "normlens/kernels/predictions.py",
        "kl[where] = log_total - expected - intact.entropy[where]",
        "kl[where] = log_total - expected",
        ("tests/kernels/test_freeze_sweep.py",),
    ),
    Fault(
        "bias-rescaled",
        "freezing a scale also rescales the bias",
        "normlens/kernels/freezing.py",
        "torch.addcmul(beta, wide - beta, ratio)",
        "wide * ratio",
        ("tests/kernels/test_freeze_sweep.py",),
    ),
    Fault(
        "rms-centred",
        "the scale of an RMSNorm ignores the mean of its input",
        "normlens/kernels/token_scale.py",
        "mean_square = variance if centred else variance + mean.square()",
        "mean_square = variance",
        ("tests/kernels/test_scale.py",),
    ),
    Fault(
        "vocabulary-not-centred",
        "logit attribution reads raw logits",
        "normlens/kernels/readout.py",
        "    columns -= _reference_columns(weights, reference, dtype)\n",
        "",
        ("tests/kernels/test_direct_effect.py", "tests/kernels/test_logit_attribution.py"),
    ),
    Fault(
        "gain-not-folded",
        "logit attribution forgets the final norm's gain",
        "normlens/kernels/readout.py",
        "columns = columns * weights.gamma.to(dtype)",
        "columns = columns + 0",
        ("tests/kernels/test_direct_effect.py", "tests/kernels/test_logit_attribution.py"),
    ),
    Fault(
        "direct-effect-frozen",
        "the direct effect keeps the intact scale",
        "normlens/kernels/direct_effect.py",
        "repair = (terms.residual_along - along) * (1 / before - 1 / after)",
        "repair = (terms.residual_along - along) * (1 / before - 1 / before)",
        ("tests/kernels/test_direct_effect.py",),
    ),
    Fault(
        "hook-left",
        "a hook stays attached when the block fails",
        "normlens/hooks.py",
        "                one.handle.remove()",
        "                pass",
        ("tests/core/test_hooks.py",),
    ),
    Fault(
        "hook-unfired",
        "a hook that never fires is no error",
        "normlens/hooks.py",
        "        if one.count != fires if fires is not None else one.count == 0:",
        "        if False:",
        ("tests/core/test_hooks.py",),
    ),
    Fault(
        "eps-from-config",
        "a norm's eps is the usual one, not the module's",
        "normlens/models/detect.py",
        "                eps=module.eps,\n                centred=True,",
        "                eps=1e-5,\n                centred=True,",
        ("tests/models",),
    ),
    Fault(
        "bootstrap-unpaired",
        "bootstrap weights depend on the position in the corpus",
        "normlens/capture/statistics.py",
        'key = hashlib.sha256(f"{seed}:{document}".encode()).digest()',
        'key = hashlib.sha256(f"{seed}:{len(columns)}".encode()).digest()',
        ("tests/capture",),
    ),
)
