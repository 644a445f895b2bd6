"""Put the trained batches together again from a stream of steps, and compute their advantages."""

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from unstable_stream.events import LearnerUpdate, Step
from unstable_stream.events.id_sets import IdTable
from unstable_stream.reward_transformations import build_sampling
from unstable_stream.update_decisions import SamplingTransform, drawn_ids, shaped_rewards

__all__ = ["Advantage", "TrainedBatches"]


class Advantage(NamedTuple):
    """The training values of one step of a batch."""

    model: str | None
    update: int
    step_id: str
    env_id: str
    role: str
    new: float
    used: float


class _Update(NamedTuple):
    model: str | None
    number: int
    size: int
    """Of its batch."""


class _Member(NamedTuple):
    place: int
    role: str
    used: Step
    new: Step


class TrainedBatches:
    """First pass all updates, then call :meth:`seal`, then pass every step with both rewards.

    It holds the steps of incomplete batches, and 24 bytes for every trained step.
    """

    def __init__(self, used: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]) -> None:
        """Take the used sampling transformations and the new ones; raises :class:`ConfigError`."""
        self._settings = (list(used), list(new))
        self._of_model: dict[str | None, tuple[SamplingTransform, SamplingTransform]] = {None: self._build()}
        """Of each trained model, the used transformations and the new ones: they may have a state."""
        self._ids = IdTable()
        self._updates: list[_Update] = []
        self._of_step = array("i")
        """Of each step, the place of its update in the list."""
        self._places = array("i")
        self._known: set[tuple[str | None, int]] = set()
        self._open: dict[int, list[_Member]] = {}
        self.done = 0
        """The number of complete batches."""

    def _build(self) -> tuple[SamplingTransform, SamplingTransform]:
        used, new = self._settings
        return build_sampling(used), build_sampling(new)

    def expect(self, update: LearnerUpdate) -> None:
        """Add the steps that an update drew; an update passed twice counts once."""
        if (update.model, update.update) in self._known:
            return
        self._known.add((update.model, update.update))
        drawn = drawn_ids(update)
        for place, step_id in enumerate(drawn):
            self._ids.add(step_id)
            self._of_step.append(len(self._updates))
            self._places.append(place)
        self._updates.append(_Update(update.model, update.update, len(drawn)))

    def seal(self) -> None:
        """Sort the steps; no update may be added after this."""
        self._ids.seal()

    def add(self, used: Sequence[Step], new: Sequence[Step], role: str) -> list[Advantage]:
        """Add a trajectory's steps; return the advantages of the batches that are complete now."""
        numbers = self._ids.find([step.event_id for step in used])
        advantages = []
        for number, before, after in zip(numbers, used, new, strict=True):
            if number < 0:
                continue
            update = self._of_step[number]
            members = self._open.setdefault(update, [])
            members.append(_Member(self._places[number], role, before, after))
            if len(members) == self._updates[update].size:
                advantages += self._close(update)
        return advantages

    def _close(self, number: int) -> list[Advantage]:
        members = sorted(self._open.pop(number), key=lambda member: member.place)
        model, update, _ = self._updates[number]
        self.done += 1
        if model not in self._of_model:
            self._of_model[model] = self._build()
        transform_used, transform_new = self._of_model[model]
        before = shaped_rewards([member.used for member in members], transform_used)
        after = shaped_rewards([member.new for member in members], transform_new)
        return [
            Advantage(model, update, member.new.event_id, member.new.env_id, member.role, now, then)
            for member, now, then in zip(members, after, before, strict=True)
        ]
