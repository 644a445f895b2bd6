"""Train on recorded updates again, each with the settings of its time, and compare.

A restarted learner does so with the updates after its newest checkpoint, ``verify --train`` with those of any
run. The steps, their order and the settings are recorded, so the metrics must come out as they were recorded:
bit by bit where they are computed on a CPU with the same versions, hardware, threads and number of learners
as then (``LearnerUpdate.computed_with``), elsewhere within :data:`RELATIVE` and :data:`ABSOLUTE`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from unstable_stream.algorithms import BaseAlgo
from unstable_stream.events import Checkpoint, LearnerUpdate, Step
from unstable_stream.reward_transformations import SamplingRewardTransform
from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.resume import RecordedConfigs
from unstable_stream.stores import owner_of
from unstable_stream.update_decisions import decide_batch
from unstable_stream.workers.learner_core import update_settings
from unstable_stream.workers.learner_ranks import Learner, configure

__all__ = ["ABSOLUTE", "RELATIVE", "RecordedUpdates", "RepeatedUpdate", "load_training"]

RELATIVE: Final = 0.02
ABSOLUTE: Final = 0.005
"""Metrics that were computed elsewhere may differ by this share of the larger one, or by this much. Measured:
one thread for two changes the metrics of 20 updates by less than 0.001 of themselves."""
_OF_THE_BUFFER: Final = "buffer_size"
"""The only metric of a decision that does not follow from the batch."""


class RepeatedUpdate(NamedTuple):
    """How an update came out that was trained again."""

    differing: dict[str, tuple[float, float]]
    """The metrics that differ: recorded, repeated."""
    elsewhere: str
    """In words what was computed with something else than then; empty: nothing, so the metrics were compared
    bit by bit."""

    def problem(self, update: LearnerUpdate) -> str:
        """Return the first difference in words; there must be one."""
        name, (recorded, repeated) = next(iter(self.differing.items()))
        more = f", and {len(self.differing) - 1} more metrics differ" if len(self.differing) > 1 else ""
        layer = f" ({self.elsewhere})" if self.elsewhere else ""
        return (
            f"update {update.update}, trained again from its recorded steps, gives {name} = {repeated!r}, "
            f"recorded is {recorded!r}{more}{layer}"
        )


class RecordedUpdates:
    """Repeats updates of one model in their order with a learner that is where they begin."""

    def __init__(
        self,
        learner: Learner,
        algorithm: BaseAlgo,
        config: RunConfig,
        recorded: RecordedConfigs,
        transform: SamplingRewardTransform,
    ) -> None:
        """Begin with a learner that was made with ``config`` and ``algorithm``."""
        self._learner = learner
        self._algorithm = algorithm
        self._config = config
        self._recorded = recorded
        self._transform = transform
        self._elsewhere = ""

    def begin(
        self, transform: SamplingRewardTransform, checkpoint: Checkpoint | None, directory: Path | None
    ) -> None:
        """Go on from a checkpoint in its directory, or with ``None`` from what the learner was made with.

        Args:
            transform: the sampling transformations, just made.
            checkpoint: whose path may be of another host.
            directory: where it is here.

        Raises:
            CheckpointError, LearnerError: see :func:`load_training`.
        """
        self._transform, self._elsewhere = transform, ""
        if checkpoint is not None and directory is not None:
            load_training(self._learner, transform, checkpoint, directory)

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
        decision = decide_batch(steps, update.update, self._transform, self._algorithm.admit)
        result = self._learner.update(
            decision.samples, update.update, decision.admissions, learning_rate_factor=rate_factor
        )
        repeated = {**result.metrics, **decision.metrics, "samples_seen": float(self._learner.samples_seen)}
        # From here on the weights are not those of then to the last bit.
        self._elsewhere = self._elsewhere or _elsewhere(update.computed_with, self._learner.computed_with())
        return RepeatedUpdate(
            {
                name: (update.metrics[name], value)
                for name, value in repeated.items()
                if name in update.metrics
                and name != _OF_THE_BUFFER
                and not _same(update.metrics[name], value, exact=not self._elsewhere)
            },
            self._elsewhere,
        )

    def configure(self, config: RunConfig) -> BaseAlgo:
        """Make the next updates with the settings of this configuration; return its algorithm."""
        if (update_settings(config), config.algorithm) != (
            update_settings(self._config),
            self._config.algorithm,
        ):
            self._algorithm = configure(self._learner, config)
        self._config = config
        return self._algorithm


def load_training(
    learner: Learner, transform: SamplingRewardTransform, checkpoint: Checkpoint, directory: Path
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


def _same(recorded: float, repeated: float, *, exact: bool) -> bool:
    if exact or recorded == repeated:
        return recorded == repeated
    return abs(recorded - repeated) <= max(ABSOLUTE, RELATIVE * max(abs(recorded), abs(repeated)))


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
