"""Removing the scale of every norm of a causal language model while it trains.

1. Every norm becomes a :class:`RemovableNorm` that still divides by the live scale and
   keeps an exponential moving average of the mean scale over all tokens.
2. At the step its schedule names, a norm's average is frozen and used as the divisor.
   The attention norms freeze their q/k path first and their v path later, both with the
   value frozen first.
3. When all are frozen the modules are exchanged for :class:`FixedScale`.

Which norms there are, and where q/k and v can be told apart, says
:mod:`normlens.training.removal_sites`; the order :mod:`normlens.training.schedule`.

Source: 2507.02559 (recipe and schedule), 2409.13710 (FakeLN). Both are about GPT-2; RMSNorms,
norms on queries and keys and norms after branches are this project's extension.
"""

from __future__ import annotations

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from normlens.models.families import family_of
from normlens.models.heads import head_counts
from normlens.models.lens import Layout
from normlens.training.recipe import Removal
from normlens.training.removal_norm import RemovableNorm
from normlens.training.removal_sites import RemovalSite, removal_sites
from normlens.training.removal_views import FusedProjection, ViewProjection
from normlens.training.schedule import Switch, freeze_step


class NormRemoval:
    """Drives the removal of one model by a schedule; its only memory is the averages.

    Args:
        model: a causal language model with live norms; they are exchanged in place.
        plan: the schedule.

    Attributes:
        switches: every scale that is frozen one by one, in order of execution.

    Raises:
        NotApplicable: a scale cannot be frozen; see
            :func:`~normlens.training.removal_sites.removal_sites`.
        UsageError: the schedule lacks a phase that the model needs.
    """

    def __init__(self, model: PreTrainedModel, plan: Removal) -> None:
        self.model = model
        self.plan = plan
        sites = removal_sites(model)
        self.switches: tuple[Switch, ...] = tuple(s for found in sites for s in found.switches)
        self._steps = {
            found.site.path: [freeze_step(plan, switch) for switch in found.switches]
            for found in sites
        }
        self._step = 0
        self._first = min(step for steps in self._steps.values() for step in steps)
        self._norms: dict[str, RemovableNorm] = {}
        self._readers: dict[str, nn.Module] = {}
        self._final: RemovableNorm | None = None
        for found in sites:
            self._exchange(found)

    def advance(self, step: int) -> int:
        """Set the switches that hold at ``step``; returns how many scales are still live."""
        self._step = step
        live = 0
        for path, norm in self._norms.items():
            norm.frozen = [step >= at for at in self._steps[path]]
            live += norm.frozen.count(False)
        if step == self._first and self._final is not None:
            # Of the positions other than the first where that one is apart.
            self._final.anchor.copy_(self._final.average.reshape(-1)[-1])
        return live

    def observe(self) -> None:
        """Update the averages from the forward passes since the last call."""
        for norm in self._norms.values():
            norm.update_average(self.plan.ema)

    @property
    def anchor(self) -> Tensor | None:
        """Target of the scale-anchor loss in this step: a scalar, in the units of the stream.

        The mean scale of the final norm's input as it was when the first norm was frozen;
        None before that, and where there is no final norm.
        """
        if self._final is None or self._step < self._first:
            return None
        return self._final.anchor

    def finish(self) -> None:
        """Exchange every norm for its FixedScale and give the projections back."""
        for path, norm in self._norms.items():
            self.model.set_submodule(path, norm.fixed())
        for path, linear in self._readers.items():
            self.model.set_submodule(path, linear)

    def _exchange(self, found: RemovalSite) -> None:
        path, views = found.site.path, len(found.switches)
        final = found.switches[0].phase == "final"
        before_last = found.site.layout in (Layout.BATCH_POS, Layout.BATCH_HEAD_POS)
        norm = RemovableNorm(
            self.model.get_submodule(path),
            found.site.spec,
            views=views,
            anchored=final,
            apart=self.plan.first_position == "apart" and before_last,
        )
        self._norms[path] = norm
        if final:
            self._final = norm
        self.model.set_submodule(path, norm)
        for reader, index in found.readers:
            linear = self.model.get_submodule(reader)
            self._readers[reader] = linear
            self.model.set_submodule(
                reader, self._projection(linear, index, views, fused=reader == found.fused)
            )

    def _projection(self, linear: nn.Module, index: int, views: int, *, fused: bool) -> nn.Module:
        if not fused:
            assert isinstance(linear, nn.Linear)
            return ViewProjection(linear, index, views)
        assert isinstance(linear, (nn.Linear, Conv1D))
        order = family_of(self.model).fused_qkv
        assert order is not None
        heads, kv_heads = head_counts(self.model)
        return FusedProjection(linear, index, views, order=order, heads=heads, kv_heads=kv_heads)
