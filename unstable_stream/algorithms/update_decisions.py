"""Make the decisions of a learner update in one pure function: the draw, advantages, drops and metrics.

:func:`decide_update` draws the batch, shapes its rewards, asks the algorithm which samples it takes, and
computes the metrics of these decisions. The learner trains on the result and records it. ``verify`` calls the
same function on the steps that the learner had read, and compares. ``rederive``, and a learner that trains a
recorded batch again, start from the recorded batch (:func:`drawn_ids`).

Nothing here needs torch: a proof starts in a fraction of a second, on any machine.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unstable_stream.algorithms.buffer import StepBuffer
from unstable_stream.errors import ConfigError, LearnerError
from unstable_stream.events import DroppedStep, LearnerUpdate, Step, unpack_floats, unpack_tokens
from unstable_stream.reward_transformations import Sample

Admission = Literal["train", "mask", "drop"]
"""``train``: the sample is trained on; ``mask``: it counts in the batch mean but contributes nothing;
``drop``: it is left out as ``truncated``.
"""


@dataclass(frozen=True, slots=True)
class TrainingSample:
    """One recorded turn and its advantage.

    Raises :class:`~unstable_stream.errors.LearnerError`: the prompt is empty, arrays differ in length, the
    temperature is not positive, or an advantage or log-probability is not finite.
    """

    step_id: str
    prompt_token_ids: NDArray[np.int32]
    """int32[prompt]: exactly the tokens that the engine received."""
    completion_token_ids: NDArray[np.int32]
    """int32[completion]: exactly the tokens that the engine sampled."""
    logprobs: NDArray[np.float32]
    """float32[completion]: log-probabilities under the distribution that was sampled from."""
    advantage: float
    """The advantage after the sampling reward transformations."""
    temperature: float = 1.0
    """The sampling temperature of the completion."""
    truncated: bool = False
    """True if the completion was cut at the token limit before an action was found in it."""
    trajectory_id: str = ""
    """The trajectory it is a turn of."""
    turn_index: int = 0
    """0-based within the trajectory."""
    pair: str | None = None
    """The preference pair that it is one answer of: chosen if its advantage is positive."""
    shaped: object = None
    """The object that a sampling transformation put in the sample's place, if any."""

    def __post_init__(self) -> None:
        problem = None
        if len(self.prompt_token_ids) == 0:
            problem = "has an empty prompt, so nothing predicts its first token"
        elif len(self.completion_token_ids) != len(self.logprobs):
            problem = (
                f"has {len(self.completion_token_ids)} completion tokens "
                f"but {len(self.logprobs)} log-probabilities"
            )
        elif not self.temperature > 0:
            problem = f"was sampled at temperature {self.temperature}; only a positive one can be trained on"
        elif not np.isfinite(self.advantage):
            problem = f"has advantage {self.advantage}; look at the sampling reward transformations"
        elif not np.isfinite(self.logprobs).all():
            problem = "has a log-probability that is not finite; look at the engine that sampled it"
        if problem is not None:
            raise LearnerError(f"step {self.step_id} {problem}")

    @classmethod
    def from_step(cls, step: Step, advantage: float, shaped: object = None) -> "TrainingSample":
        """Unpack a step event; the arrays are views of its bytes."""
        return cls(
            step_id=step.event_id,
            prompt_token_ids=unpack_tokens(step.prompt_token_ids),
            completion_token_ids=unpack_tokens(step.completion_token_ids),
            logprobs=unpack_floats(step.logprobs),
            advantage=advantage,
            temperature=step.temperature,
            truncated=step.truncated if step.cut_off is None else step.cut_off,
            trajectory_id=step.trajectory_id,
            turn_index=step.turn_index,
            pair=step.pair,
            shaped=None if type(shaped) is Sample else shaped,
        )


Admit: TypeAlias = Callable[[TrainingSample], Admission]
"""An algorithm's decision about one sample: ``BaseAlgo.admit``, or :func:`admission` with its settings."""

SamplingTransform: TypeAlias = Callable[[list[Sample]], list[Sample]]
"""The composed sampling transformations of a run."""


@dataclass(frozen=True, slots=True)
class UpdateDecision:
    """The decisions of an update, before it is carried out."""

    samples: tuple[TrainingSample, ...]
    """The whole batch in batch order, with advantages, including the samples that the algorithm drops."""
    admissions: tuple[Admission, ...]
    """The admission of each sample."""
    dropped: tuple[DroppedStep, ...]
    """Overflow and stale steps since the update before, then the steps of the batch that the algorithm leaves
    out.
    """
    metrics: Mapping[str, float]
    """``staleness_mean`` and ``staleness_max`` in policy versions, ``reward_mean`` before the sampling
    transformations, ``buffer_size`` in steps after the draw. Empty for an empty batch.
    """

    @property
    def trained_ids(self) -> tuple[str, ...]:
        """The trained steps in batch order, including masked ones."""
        return tuple(
            sample.step_id
            for sample, decision in zip(self.samples, self.admissions, strict=True)
            if decision != "drop"
        )


def decide_update(
    buffer: StepBuffer, batch_size: int, update: int, transform: SamplingTransform, admit: Admit
) -> UpdateDecision:
    """Take the batch of an update out of the buffer and make the decisions about it.

    Args:
        buffer: holds the steps that may be drawn; drawn and dropped steps leave it.
        batch_size: the most steps to draw.
        update: number of the update, counted from 1.
        transform: the sampling transformations.
        admit: the algorithm's decision about one sample.

    Raises:
        LearnerError: a step cannot be trained on; the batch has left the buffer all the same.
        ConfigError: see :func:`shaped_rewards`.
    """
    batch = buffer.get_batch(batch_size, update)
    return decide_batch(
        batch.steps, update, transform, admit, dropped=batch.dropped, buffer_size=buffer.size()
    )


def decide_batch(
    steps: Sequence[Step],
    update: int,
    transform: SamplingTransform,
    admit: Admit,
    *,
    dropped: Sequence[DroppedStep] = (),
    buffer_size: int = 0,
) -> UpdateDecision:
    """Make the decisions about a batch that a buffer or a recorded update has drawn.

    Args:
        steps: the batch, in batch order.
        update: number of the update, counted from 1.
        transform: the sampling transformations.
        admit: the algorithm's decision about one sample.
        dropped: the steps that the buffer dropped.
        buffer_size: the number of steps that the buffer still holds.

    Raises:
        LearnerError: a step cannot be trained on.
        ConfigError: see :func:`shaped_rewards`.
    """
    samples = tuple(
        TrainingSample.from_step(step, float(each.reward), each)
        for step, each in zip(steps, _shaped(steps, transform), strict=True)
    )
    admissions = tuple(admit(sample) for sample in samples)
    # A fully on-policy update u trains on version u - 1.
    staleness = [update - 1 - step.policy_version for step in steps]
    metrics = (
        {
            "staleness_mean": sum(staleness) / len(staleness),
            "staleness_max": float(max(staleness)),
            "reward_mean": sum(step.reward for step in steps) / len(steps),
            "buffer_size": float(buffer_size),
        }
        if steps
        else {}
    )
    truncated = [
        DroppedStep(sample.step_id, "truncated")
        for sample, decision in zip(samples, admissions, strict=True)
        if decision == "drop"
    ]
    return UpdateDecision(samples, admissions, (*dropped, *truncated), metrics)


def shaped_rewards(steps: Sequence[Step], transform: SamplingTransform) -> list[float]:
    """Return a batch's advantages: each step's reward after the sampling transformations, in batch order.

    Raises:
        ConfigError: a transformation returned another number of samples, or another order. If it left one
            out, that step would be neither trained nor dropped.
    """
    return [float(each.reward) for each in _shaped(steps, transform)]


# ``Any``: a transformation may return objects of a class of its own.
def _shaped(steps: Sequence[Step], transform: SamplingTransform) -> Sequence[Any]:
    shaped = transform([Sample.from_step(step) for step in steps])
    if len(shaped) != len(steps) or not all(map(_stands_for, shaped, steps)):
        raise ConfigError(
            f"the sampling transformations made {len(shaped)} samples of a batch of {len(steps)}, or changed "
            "their order; expected the same samples in the same order, with new rewards"
        )
    return shaped


def _stands_for(shaped: Any, step: Step) -> bool:
    if isinstance(shaped, Sample):
        return shaped.step_id == step.event_id
    sample = Sample.from_step(step)
    named = all(hasattr(shaped, name) for name in ("pid", "obs", "act", "reward"))
    return named and (shaped.pid, shaped.obs, shaped.act) == (sample.pid, sample.obs, sample.act)


def admission(
    sample: TrainingSample,
    *,
    max_train_len: int | None,
    truncated_turns: Admission = "train",
) -> Admission:
    """Decide about one sample as the built-in algorithms do.

    A prompt that fills ``max_train_len`` tokens leaves nothing to train on: ``drop``. A completion without
    tokens is masked: its token sum is zero. ``truncated_turns`` decides about turns that were cut at the
    token limit before an action was found in them.
    """
    if max_train_len is not None and len(sample.prompt_token_ids) >= max_train_len:
        return "drop"
    if not len(sample.completion_token_ids):
        return "mask"
    return truncated_turns if sample.truncated else "train"


def drawn_ids(update: LearnerUpdate) -> list[str]:
    """Return the steps that a recorded update drew: trained ones first, then those the algorithm left out.

    The sampling transformations saw all of them, so the advantages depend on all of them.
    """
    return [*update.step_ids, *(drop.step_id for drop in update.dropped if drop.reason == "truncated")]
