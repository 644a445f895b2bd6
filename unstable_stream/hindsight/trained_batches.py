"""Put the trained batches together again from a stream of steps, and compute their advantages."""

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from unstable_stream.events import LearnerUpdate, Step
from unstable_stream.events.id_sets import IdTable
from unstable_stream.reward_transformations import build_sampling
from unstable_stream.update_decisions import drawn_ids, shaped_rewards

__all__ = ["Advantage", "TrainedBatches"]


class Advantage(NamedTuple):
    """The training values of one step of a batch."""

    update: int
    step_id: str
    env_id: str
    role: str
    new: float
    used: float


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
        self._used = build_sampling(list(used))
        self._new = build_sampling(list(new))
        self._ids = IdTable()
        self._updates = array("i")
        self._places = array("i")
        self._sizes: dict[int, int] = {}
        self._open: dict[int, list[_Member]] = {}
        self.done = 0
        """The number of complete batches."""

    def expect(self, update: LearnerUpdate) -> None:
        """Add the steps that an update drew; an update passed twice counts once."""
        if update.update in self._sizes:
            return
        drawn = drawn_ids(update)
        self._sizes[update.update] = len(drawn)
        for place, step_id in enumerate(drawn):
            self._ids.add(step_id)
            self._updates.append(update.update)
            self._places.append(place)

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
            update = self._updates[number]
            members = self._open.setdefault(update, [])
            members.append(_Member(self._places[number], role, before, after))
            if len(members) == self._sizes[update]:
                advantages += self._close(update)
        return advantages

    def _close(self, update: int) -> list[Advantage]:
        members = sorted(self._open.pop(update), key=lambda member: member.place)
        self.done += 1
        before = shaped_rewards([member.used for member in members], self._used)
        after = shaped_rewards([member.new for member in members], self._new)
        return [
            Advantage(update, member.new.event_id, member.new.env_id, member.role, now, then)
            for member, now, then in zip(members, after, before, strict=True)
        ]
