"""Compare the snapshot of a run's collector with a fold from the beginning.

Two parts of the state are left out, since they follow from the order in which the topics were read: which
checkpoints may be drawn in the weighted modes, and on a log that compacts the ratings of that moment.
"""

from typing import Any

import msgspec

from unstable_stream.errors import ConfigError, EnvironmentUnavailableError
from unstable_stream.events import GameStarted
from unstable_stream.history.proofs.evidence import Evidence
from unstable_stream.history.proofs.reports import Check, Difference, differing_fields
from unstable_stream.log.reading import events_to_end, read_to_end
from unstable_stream.log.saved_state import UnusableStateError
from unstable_stream.runs.code import find_code
from unstable_stream.runs.starts import deleted_records, known_starts, run_starts
from unstable_stream.services.workers.collector import event_for_collector, topics_of_collector
from unstable_stream.services.workers.collector_snapshot import read_snapshot
from unstable_stream.services.workers.exploitability import ExploitabilitySchedule
from unstable_stream.services.workers.game_schedule import GameSchedule, ScheduleState


async def check_collector(evidence: Evidence) -> Check:
    """Compare what is saved now, if it can be used and all that it follows from is there."""
    check = Check("collector snapshot")
    log, run, config = evidence.log, evidence.run, evidence.run.config()
    topics = topics_of_collector(config)
    if not set(topics) <= (await log.topics()).keys():
        return check
    try:
        find_code(config)
        found = await read_snapshot(log, run.run_id, topics, config)
        if found is None:
            return check
        saved, _ = found
        schedule = GameSchedule(run.run_id, config, run.began)
    except (UnusableStateError, ConfigError, EnvironmentUnavailableError):
        # No collector would use it, or what it was made with is not on this machine.
        check.gone += 1
        return check
    if await deleted_records(log, await known_starts(log, run.began, topics), topics):
        check.gone += 1
        return check
    first_update = run.began.parent_update or 0 if run.began else 0
    measuring = ExploitabilitySchedule(run.run_id, config, first_update)
    starts = await run_starts(log, run.run_id, topics)
    async for record in read_to_end(log, topics, starts=starts, ends=saved.offsets):
        if (event := event_for_collector(record, run.run_id)) is not None:
            schedule.apply(event)
            measuring.apply(event)
    # The collector knows its own games before it reads them.
    topic = GameStarted.TOPIC
    ahead = {at: position for at, position in saved.offsets.items() if at.topic == topic}
    async for _, game in events_to_end(log, (topic,), run_id=run.run_id, starts=ahead):
        if isinstance(game, GameStarted) and game.game_index < saved.schedule.next_index.get(game.split, 0):
            schedule.apply(game)
    check.compared += 1
    fields = differing_fields(
        _comparable(saved.schedule, saved.measured, evidence),
        _comparable(schedule.state(), measuring.state(), evidence),
    )
    if fields:
        path, recorded, recomputed = fields[0]
        more = f" in {len(fields)} fields, first" if len(fields) > 1 else ""
        what = f"differs{more} from a fold from the beginning"
        check.differs(
            Difference(f"snapshot of collector/{run.run_id}", run.run_id, what, path, recorded, recomputed)
        )
    return check


def _comparable(schedule: ScheduleState, measured: Any, evidence: Evidence) -> bytes:
    ratings = [] if evidence.compacted else schedule.pool.ratings
    pool = msgspec.structs.replace(schedule.pool, active=(), ratings=ratings)
    state = [msgspec.structs.replace(schedule, pool=pool), measured]
    return msgspec.json.encode(state, order="deterministic")
