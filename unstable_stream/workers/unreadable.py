"""Find the steps of trajectories that cannot be decoded: outcomes promise them, and they will never be made.

The reward processor has put such a record on ``dead-letters``. Its body says nothing, but its header names
the trajectory, and the outcome of the game tells how many steps were to follow. An outcome is appended
together with its trajectories, so it is there when the letter is; by its time it is soon found.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Final

from unstable_stream.errors import EventError
from unstable_stream.events import GameOutcome, RecordRejected, Trajectory, decode_event, trajectory_id
from unstable_stream.log.port import EventLog, Positions
from unstable_stream.log.reading import events_to_end, settled_ends
from unstable_stream.log.records import id_header, source_header
from unstable_stream.reward_transformations import RewardProcessor, expected_step_ids
from unstable_stream.runs.starts import run_starts
from unstable_stream.streams.processor import group_of

__all__ = ["UNREADABLE", "promised_steps", "unreadable_trajectories"]

UNREADABLE: Final = "unreadable"
"""The reason of the drop."""
_EARLIER_MS: Final = 60_000


def unreadable_trajectories(letters: Iterable[RecordRejected], run_id: str) -> dict[str, int]:
    """Return the ids of a run's trajectories that could not be decoded, each with its record's time in ms."""
    shaping = {group_of(RewardProcessor.name, run) for run in (run_id, None)}
    found: dict[str, int] = {}
    for letter in letters:
        headers = letter.record_headers
        name = id_header(headers)
        is_ours = letter.consumer in shaping and headers.get("ce_source") == source_header(run_id)
        if name and is_ours and letter.topic == Trajectory.TOPIC and not _is_event(letter.record_value):
            found[name] = letter.record_timestamp_ms
    return found


async def promised_steps(
    log: EventLog,
    run_id: str,
    trajectories: dict[str, int],
    *,
    filter_opponent_invalid: bool,
    model: str | None,
) -> dict[int, list[str]]:
    """Return the ids of the steps that outcomes promise of these trajectories, by game index.

    Args:
        log: the event log.
        run_id: the run.
        trajectories: their ids, each with its record's time.
        filter_opponent_invalid: as in the configuration of the collector.
        model: name of the trained model; ``None``: the only one of the run.
    """
    promised: dict[int, list[str]] = {}
    wanted = set(trajectories)
    topics = (GameOutcome.TOPIC,)

    async def look(starts: Positions) -> None:
        ends = await settled_ends(log, topics)
        async with aclosing(events_to_end(log, topics, run_id=run_id, starts=starts, ends=ends)) as events:
            async for _, event in events:
                if not isinstance(event, GameOutcome):
                    continue
                views: Mapping[str, Sequence[str]] = {}
                if event.split == "train":  # no other game promises steps
                    views = expected_step_ids(
                        event, filter_opponent_invalid=filter_opponent_invalid, model=model
                    )
                for view in wanted & views.keys():
                    promised.setdefault(event.game_index, []).extend(views[view])
                wanted.difference_update(trajectory_id(event.game_id, seat.seat) for seat in event.seats)
                if not wanted:
                    return

    starts = await run_starts(log, run_id, topics)
    earliest = max(0, min(trajectories.values()) - _EARLIER_MS)
    timely = await log.offsets_for_time(GameOutcome.TOPIC, earliest)
    await look({at: max(starts.get(at, 0), offset) for at, offset in timely.items()})
    if wanted:  # a clock jumped
        await look(starts)
    return promised


def _is_event(value: bytes) -> bool:
    try:
        decode_event(value)
    except EventError:
        return False
    return True
