"""Steps that no update will ever use though outcomes promise them: each becomes a recorded drop.

An outcome is kept as long as its run, and says which steps follow from its game. A step that is expected and
that no update has used has one of these fates:

- the reward processor has not come to its trajectory yet: it will come, and is left alone;
- its trajectory was quarantined: it never existed, and ``dead-letters`` says so. Where the trajectory cannot
  even be decoded, only the header of its record names it, and it is dropped as ``unreadable``;
- it has expired: ``steps`` may have a retention. It is dropped as ``expired``.

Offsets say nothing about it: on Kafka they have gaps. :func:`lost_steps` reads in this order, so that a step
which is on its way is never taken for an expired one: outcomes, then the processor's position, then the
trajectories after it, and the steps at last.
"""

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Final

from unstable_stream.errors import EventError
from unstable_stream.events import (
    DroppedStep,
    GameOutcome,
    RecordRejected,
    Step,
    StepsDropped,
    Trajectory,
    decode_event,
    event_id,
)
from unstable_stream.events.id_sets import IndexSet
from unstable_stream.log.port import EventLog, Positions, StoredRecord
from unstable_stream.log.reading import events_to_end, read_to_end, settled_ends
from unstable_stream.log.records import id_header, source_header
from unstable_stream.reward_transformations import RewardProcessor, expected_step_ids
from unstable_stream.runs.history import read_history
from unstable_stream.runs.starts import check_whole, recorded_starts, run_events
from unstable_stream.services.streams.processor import group_of

UNREADABLE: Final = "unreadable"
"""The reason of the drop."""
_DROPS_AT_ONCE: Final = 50_000
"""Dropped steps of one event, about 50 bytes each: far below the size limit of a record."""


async def lost_steps(
    log: EventLog,
    run_id: str,
    *,
    filter_opponent_invalid: bool,
    model: str | None,
    used: Callable[[int, Sequence[str]], set[str]],
) -> list[str]:
    """Return the ids of a model's steps that have expired unused, sorted; read little if none were deleted.

    Args:
        log: the event log.
        run_id: the run.
        filter_opponent_invalid: as in the configuration of the collector.
        model: name of the trained model; ``None``: the only one of the run.
        used: returns which of these step ids, all of the game of this index, an update has used.

    Raises:
        ServiceError: outcomes of the run were deleted.
    """
    run = (await read_history(log)).runs.get(run_id)
    starts = recorded_starts(run.began if run else None, await log.log_id(), (Step.TOPIC,))
    kept = await log.beginning_offsets(Step.TOPIC)
    if not any(first > starts.get(at, 0) for at, first in kept.items()):
        return []  # all that was deleted is from before this run
    missing: dict[str, list[str]] = {}
    seen = IndexSet()
    topics = (GameOutcome.TOPIC,)
    await check_whole(log, run_id, topics)
    async with aclosing(run_events(log, topics, run_id)) as outcomes:
        async for _, event in outcomes:
            # Of a game that two workers finished, the first outcome counts.
            if not isinstance(event, GameOutcome) or event.split != "train" or not seen.add(event.game_index):
                continue
            promised = expected_step_ids(event, filter_opponent_invalid=filter_opponent_invalid, model=model)
            known = used(event.game_index, [step for steps in promised.values() for step in steps])
            for trajectory, steps in promised.items():
                if not known.issuperset(steps):
                    missing[trajectory] = [step for step in steps if step not in known]
    if missing:
        await _leave_out_unshaped(log, run_id, missing)
    lost = {step for steps in missing.values() for step in steps}
    if lost:
        async with aclosing(await _settled(log, Step.TOPIC, run_id)) as records:
            async for record in records:
                lost.discard(id_header(record.headers))
    return sorted(lost)


async def _leave_out_unshaped(log: EventLog, run_id: str, missing: dict[str, list[str]]) -> None:
    """Take out the trajectories that the reward processor has not processed yet, or has quarantined."""
    groups = [group_of(RewardProcessor.name, run) for run in (run_id, None)]
    starts = await _processed(log, groups)
    async with aclosing(await _settled(log, Trajectory.TOPIC, run_id, starts)) as records:
        async for record in records:
            missing.pop(id_header(record.headers), None)
    topics = (RecordRejected.TOPIC,)
    async with aclosing(events_to_end(log, topics, ends=await settled_ends(log, topics))) as rejected:
        async for _, event in rejected:
            if isinstance(event, RecordRejected) and event.consumer in groups:
                missing.pop(id_header(event.record_headers), None)


async def _settled(
    log: EventLog, topic: str, run_id: str, starts: Positions | None = None
) -> AsyncGenerator[StoredRecord, None]:
    """Return all records: one behind an open transaction must not be taken for one that has expired."""
    ends = await settled_ends(log, (topic,))
    return read_to_end(log, (topic,), run_id=run_id, starts=starts, ends=ends)


async def _processed(log: EventLog, groups: Sequence[str]) -> Positions:
    """Return where the reward processor goes on; it may serve this run alone, or all runs."""
    positions = dict(await log.beginning_offsets(Trajectory.TOPIC))
    for group in groups:
        for at, offset in (await log.committed_positions(group)).items():
            positions[at] = max(positions.get(at, 0), offset)
    return positions


def drop_events(
    run_id: str, update: int, dropped: Sequence[DroppedStep], now_ms: int, model: str | None
) -> list[StepsDropped]:
    """Return the events that record dropped steps before an update is made."""
    return [
        StepsDropped(
            event_id=event_id(run_id, "steps-dropped", update, dropped[first].step_id),
            run_id=run_id,
            occurred_at_ms=now_ms,
            update=update,
            dropped=tuple(dropped[first : first + _DROPS_AT_ONCE]),
            model=model,
        )
        for first in range(0, len(dropped), _DROPS_AT_ONCE)
    ]


def unreadable_trajectories(rejected: Iterable[RecordRejected], run_id: str) -> set[str]:
    """Return the ids of a run's trajectories that could not be decoded: their records' headers name them."""
    groups = {group_of(RewardProcessor.name, run) for run in (run_id, None)}
    return {
        name
        for letter in rejected
        if letter.consumer in groups and letter.record_headers.get("ce_source") == source_header(run_id)
        if letter.topic == Trajectory.TOPIC and not _is_event(letter.record_value)
        if (name := id_header(letter.record_headers))
    }


async def promised_steps(
    log: EventLog, run_id: str, trajectories: set[str], *, filter_opponent_invalid: bool, model: str | None
) -> dict[int, list[str]]:
    """Return the ids of the steps that outcomes promise of these trajectories, by game index.

    An outcome is appended together with its trajectories, so it is there when the letter is. To find it, all
    outcomes of the run are read: a trajectory that cannot be decoded is rare.

    Args:
        log: the event log.
        run_id: the run.
        trajectories: their ids.
        filter_opponent_invalid: as in the configuration of the collector.
        model: name of the trained model; ``None``: the only one of the run.
    """
    promised: dict[int, list[str]] = {}
    wanted = set(trajectories)
    topics = (GameOutcome.TOPIC,)
    async with aclosing(run_events(log, topics, run_id, await settled_ends(log, topics))) as events:
        async for _, event in events:
            if isinstance(event, GameOutcome) and event.split == "train":  # no other game promises steps
                views = expected_step_ids(event, filter_opponent_invalid=filter_opponent_invalid, model=model)
                for view in wanted & views.keys():
                    promised.setdefault(event.game_index, []).extend(views[view])
                wanted -= views.keys()  # of a game that two workers finished, the first outcome counts
    return promised


def _is_event(value: bytes) -> bool:
    try:
        decode_event(value)
    except EventError:
        return False
    return True
