"""Mistakes of the kind that the simulation is there to find, each put into the real code on purpose.

A simulation that finds nothing proves nothing until it is seen to find something. Each of these takes away
one of the measures on which the guarantees rest. ``tests/simulation/test_simulation.py`` runs seeds until one
finds it.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace, TracebackType
from typing import Any, Final, Self
from unittest.mock import patch

from tests.simulation.log import SimulatedProducer, SimulatedTransaction
from unstable_stream.events.id_sets import IndexSet
from unstable_stream.log.local.log import LocalProducer
from unstable_stream.log.port import Positions, Record
from unstable_stream.services.workers.collector import Collector
from unstable_stream.services.workers.collector_snapshot import CollectorSnapshots
from unstable_stream.services.workers.rollout import RolloutWorker


class _Apart:
    """A transaction whose parts are stored one after the other."""

    def __init__(self, producer: SimulatedProducer, begin: Callable[[], SimulatedTransaction]) -> None:
        self._begin = begin
        self._parts: list[Callable[[SimulatedTransaction], Any]] = []

    async def __aenter__(self) -> Self:
        return self

    async def append(self, records: Sequence[Record]) -> None:
        for record in records:
            self._parts.append(partial(_append_one, record))

    async def commit_positions(self, group: str, positions: Positions) -> None:
        self._parts.append(lambda transaction: transaction.commit_positions(group, positions))

    async def save(self, scope: str, states: Any) -> None:
        self._parts.append(lambda transaction: transaction.save(scope, states))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for part in self._parts if kind is None else ():
            async with self._begin() as transaction:
                await part(transaction)


async def _append_one(record: Record, transaction: SimulatedTransaction) -> None:
    await transaction.append([record])


def _apart(writer: str) -> dict[tuple[Any, str], Any]:
    """Let a service store the parts of its transactions one after the other."""
    whole = SimulatedProducer.transaction

    def transaction(self: SimulatedProducer) -> Any:
        if not self.inner._producer_id.startswith(writer):
            return whole(self)
        return _Apart(self, lambda: whole(self))

    return {(SimulatedProducer, "transaction"): transaction}


def _forgotten_ids() -> dict[tuple[Any, str], Any]:
    add = IndexSet.add

    def always_new(self: IndexSet, index: int) -> bool:
        add(self, index)
        return True

    return {(IndexSet, "add"): always_new}


def _forgotten_games() -> dict[tuple[Any, str], Any]:
    restore = Collector._restore

    async def without_dispatch(self: Collector, *arguments: Any) -> None:
        dispatch = self._dispatch
        self._dispatch = lambda games: None  # type: ignore[method-assign]
        try:
            await restore(self, *arguments)
        finally:
            self._dispatch = dispatch  # type: ignore[method-assign]

    return {(Collector, "_restore"): without_dispatch}


def _unchecked_fence() -> dict[tuple[Any, str], Any]:
    return {(LocalProducer, "check_epoch"): lambda self, connection: None}


def _game_in_parts() -> dict[tuple[Any, str], Any]:
    publish = RolloutWorker._publish

    async def one_by_one(self: RolloutWorker, records: Sequence[Record]) -> None:
        for record in reversed(records):
            await publish(self, [record])

    return {(RolloutWorker, "_publish"): one_by_one}


def _early_snapshots() -> dict[tuple[Any, str], Any]:
    pack = CollectorSnapshots._state

    def with_the_state_before(self: CollectorSnapshots, log_id: str, positions: Positions) -> Any:
        schedule, measuring = self._schedule, self._measuring
        now = (schedule.state(), dict(schedule.checkpoints), measuring.state())
        state, checkpoints, measured = vars(self).get("before", now)
        vars(self)["before"] = now
        late = SimpleNamespace(state=lambda: state, checkpoints=checkpoints)
        with patch.multiple(self, _schedule=late, _measuring=SimpleNamespace(state=lambda: measured)):
            return pack(self, log_id, positions)

    return {(CollectorSnapshots, "_state"): with_the_state_before}


MISTAKES: Final[dict[str, tuple[int, Callable[[], dict[tuple[Any, str], Any]]]]] = {
    "results-apart-from-position": (2, lambda: _apart("reward-processor")),
    "ids-not-recognised": (36, _forgotten_ids),
    "update-apart-from-checkpoint": (36, lambda: _apart("learner/")),
    "unfinished-games-forgotten": (6, _forgotten_games),
    "fence-not-checked": (3, _unchecked_fence),
    "game-published-in-parts": (7, _game_in_parts),
    "snapshot-ahead-of-its-position": (2, _early_snapshots),
}
"""By name, a seed that is known to find it, and what replaces what: module or class, and name."""


@contextlib.contextmanager
def replaced(parts: dict[tuple[Any, str], Any]) -> Iterator[None]:
    """Put others in the place of parts of the code, given as (module or class, name), for the duration."""
    with contextlib.ExitStack() as stack:
        for (where, name), other in parts.items():
            stack.enter_context(patch.object(where, name, other))
        yield
