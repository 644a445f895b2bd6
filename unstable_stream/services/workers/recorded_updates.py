"""Train on recorded updates again, each with the settings of its time, and compare.

A restarted learner does so with the updates after its newest checkpoint, ``verify --train`` with those of any
run. The steps, their order and the settings are recorded, so the metrics must come out as they were recorded:
bit by bit where they are computed on a CPU with the same versions, hardware, threads and number of learners
as then (``LearnerUpdate.computed_with``), elsewhere within a :class:`Tolerance`.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from unstable_stream.algorithms import BaseAlgo
from unstable_stream.algorithms.learners.standard_learner import StandardLearner
from unstable_stream.algorithms.update_decisions import decide_batch
from unstable_stream.events import Checkpoint, LearnerUpdate, Step
from unstable_stream.log.stores.address import owner_of
from unstable_stream.reward_transformations import SamplingRewardTransform
from unstable_stream.runs.base_model import base_model_path
from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.placement import Share
from unstable_stream.runs.resume import RecordedConfigs
from unstable_stream.services.workers.learner_core import (
    LearnerPlan,
    build_learner,
    build_training_algorithm,
    configure,
    learner_settings,
)

_OF_THE_BUFFER: Final = frozenset({"buffer_size"})
"""The metric of a decision that does not follow from the batch."""
_OF_THE_CUT: Final = frozenset({"padding_fraction", "micro_batch_tokens_max"})
"""These depend on the number of learners and on the device, and change nothing."""
_OF_THE_RECORD: Final = frozenset(
    {
        "completion_tokens",
        "learning_rate",
        "optimizer_steps",
        "reward_mean",
        "samples",
        "samples_dropped",
        "samples_masked",
        "samples_seen",
        "staleness_max",
        "staleness_mean",
    }
)
"""These follow from steps and settings alone, so they are the same on every machine."""


class Tolerance(NamedTuple):
    """The bounds of a metric that was computed elsewhere; to be within either is enough."""

    relative: float
    """Share of the larger of the two."""
    absolute: float
    ignored: frozenset[str] = frozenset()
    """Metrics that are not compared."""

    def __str__(self) -> str:
        return "anything" if math.isinf(self.absolute) else f"{self.relative:.0%} or {self.absolute:g}"


_FLOAT32: Final = Tolerance(0.02, 0.005)
"""Measured over 12 updates, with the plain instructions of a CPU for AVX2: 0.00005 of themselves."""
_BFLOAT16: Final = Tolerance(0.2, 0.1, frozenset({"grad_norm"}))
"""Measured likewise: 2% of the entropy, 8% of a ratio, 52% of a gradient's norm."""
_OTHER_DROPOUT: Final = Tolerance(math.inf, math.inf)
"""The masks depend on device and ranks: only what follows from the record can be compared."""


class RepeatedUpdate(NamedTuple):
    """The result of training on an update again."""

    differing: dict[str, tuple[float, float]]
    """The metrics that differ: recorded, repeated."""
    elsewhere: str
    """In words what was computed with something else than then; empty: nothing."""
    tolerance: Tolerance | None
    """``None``: the metrics were compared bit by bit."""

    def problem(self, update: LearnerUpdate) -> str:
        """Return the first difference in words; there must be one."""
        name, (recorded, repeated) = next(iter(self.differing.items()))
        more = f", and {len(self.differing) - 1} more metrics differ" if len(self.differing) > 1 else ""
        layer = f", and allowed is {self.tolerance} ({self.elsewhere})" if self.tolerance else ""
        return (
            f"update {update.update}, trained again from its recorded steps, gives {name} = {repeated!r}, "
            f"recorded is {recorded!r}{more}{layer}"
        )


class RecordedUpdates:
    """Repeats updates of one model in their order with a learner that is where they begin."""

    def __init__(
        self,
        learner: StandardLearner,
        config: RunConfig,
        recorded: RecordedConfigs,
        transform: SamplingRewardTransform,
    ) -> None:
        """Begin with a learner that was made with ``config``."""
        self._learner = learner
        self._config = config
        self._recorded = recorded
        self._transform = transform
        self._elsewhere = ""

    def begin(
        self,
        first: LearnerUpdate,
        transform: SamplingRewardTransform,
        checkpoint: Checkpoint | None,
        directory: Path | None,
    ) -> None:
        """Go on from a checkpoint in its directory, or with ``None`` from what the learner was made with.

        Args:
            first: the update to repeat first. A load keeps only what the algorithm of that time has: its
                networks, its own state.
            transform: the sampling transformations, just made.
            checkpoint: whose path may be of another host.
            directory: where it is here.

        Raises:
            CheckpointError, LearnerError: see :func:`load_training`.
        """
        self._transform, self._elsewhere = transform, ""
        self.configure(self._recorded.of(first) or self._config)
        if checkpoint is not None and directory is not None:
            load_training(self._learner, transform, checkpoint, directory)

    @property
    def drifts(self) -> bool:
        """Whether the weights are no longer those of the record to the last bit."""
        return self._elsewhere != ""

    def repeat(self, update: LearnerUpdate, steps: Sequence[Step], rate_factor: float) -> RepeatedUpdate:
        """Train on an update again.

        Args:
            update: the next one.
            steps: those that it drew, in its order.
            rate_factor: what collapse warnings had left of the learning rate.

        Raises:
            RunError: the settings of its time are not in the log.
            LearnerError: it cannot be trained on.
        """
        self.configure(self._recorded.of(update) or self._config)
        decision = decide_batch(steps, update.update, self._transform, self._learner.algorithm.admit)
        result = self._learner.update(
            decision.samples, update.update, decision.admissions, learning_rate_factor=rate_factor
        )
        repeated = {**result.metrics, **decision.metrics, "samples_seen": float(self._learner.samples_seen)}
        now = self._learner.computed_with()
        # From here on the weights are not those of then to the last bit.
        self._elsewhere = self._elsewhere or _elsewhere(update.computed_with, now)
        tolerance = None
        if self._elsewhere:
            lower = "bfloat16" in (update.computed_with.get("dtype"), now["dtype"])
            tolerance = _BFLOAT16 if lower else _FLOAT32
            drops = self._config.lora.lora_dropout and self._config.learner.parameters == "lora"
            if drops and any(update.computed_with.get(name) != now[name] for name in ("device", "learners")):
                tolerance = _OTHER_DROPOUT
        differing = {
            name: (update.metrics[name], value)
            for name, value in repeated.items()
            if name in update.metrics and not _same(name, update.metrics[name], value, tolerance)
        }
        return RepeatedUpdate(differing, self._elsewhere, tolerance)

    def configure(self, config: RunConfig) -> BaseAlgo:
        """Make the next updates with the settings of this configuration; return its algorithm."""
        if (learner_settings(config), config.algorithm) != (
            learner_settings(self._config),
            self._config.algorithm,
        ):
            configure(self._learner, config)
        self._config = config
        return self._learner.algorithm


def learner_to_repeat(config: RunConfig, update: LearnerUpdate) -> StandardLearner:
    """Make a learner that saves nothing, on the kind of device that computed an update.

    After the first update its weights come from a checkpoint, to be loaded.

    Args:
        config: its settings.
        update: the first one to train on.

    Raises:
        ConfigError, LearnerError: the base model, the algorithm or the adapter to begin with is not here.
    """
    settings, then = config.learner, update.computed_with
    if update.update > 1:
        settings = settings.model_copy(update={"initial_lora_path": None})
    return build_learner(
        LearnerPlan(
            config.model_copy(update={"learner": settings}),
            Path(),
            base_model_path(config),
            Share("learner") if then.get("device", "").startswith("cpu") else None,
            then.get("dtype") if settings.dtype == "auto" else settings.dtype,
        ),
        build_training_algorithm(config),
    )


def load_training(
    learner: StandardLearner, transform: SamplingRewardTransform, checkpoint: Checkpoint, directory: Path
) -> None:
    """Bring a learner and the sampling transformations to where they were at a checkpoint of their run.

    Raises:
        CheckpointError: the checkpoint is damaged, another one than was recorded, or without optimizer state.
        LearnerError: it was made with another shape of model.
    """
    state = learner.load(directory, checkpoint.sha256)
    if state.sampling and owner_of(checkpoint.path or "") == checkpoint.run_id:
        # A fork's first checkpoint is its parent's; it learns its own. By name, because a data directory may
        # be reached by another path.
        transform.load_state(state.sampling)


def _same(name: str, recorded: float, repeated: float, tolerance: Tolerance | None) -> bool:
    if recorded == repeated or name in _OF_THE_BUFFER:
        return True
    if tolerance is None:
        return False
    if name in _OF_THE_RECORD:
        return math.isclose(recorded, repeated, rel_tol=1e-9)
    if name in _OF_THE_CUT or name in tolerance.ignored:
        return True
    return math.isclose(recorded, repeated, rel_tol=tolerance.relative, abs_tol=tolerance.absolute)


def _elsewhere(then: dict[str, str], now: dict[str, str]) -> str:
    if not then:
        return "it was recorded without what it was computed with"
    changed = [
        f"{name} was {then.get(name, 'not known')}, here {now.get(name, 'not known')}"
        for name in sorted(then.keys() | now.keys())
        if then.get(name) != now.get(name)
    ]
    if not changed and now["device"].startswith("cuda"):
        return "the sums of a GPU have no fixed order"
    return "; ".join(changed)
