"""The search for the outcomes of trajectories that cannot be decoded ends, and reaches what has expired."""

from pathlib import Path
from typing import Any

import msgspec

from tests.workers.test_learner_service import RUN, TURNS, lost_game, new_log, steps
from unstable_stream.events import game_id, trajectory_id
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.port import Consumer
from unstable_stream.log.records import record_from_event
from unstable_stream.log.topics import load_topics
from unstable_stream.workers.unreadable import promised_steps


class _Counting:
    """A log that counts how often somebody begins to read it."""

    def __init__(self, log: LocalLog) -> None:
        self._log = log
        self.begun = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def consumer(self, topics: list[str], *arguments: Any, **named: Any) -> Consumer:
        self.begun += topics[0] == "game-outcomes"
        return await self._log.consumer(topics, *arguments, **named)


async def test_evaluation_games_end_the_search(tmp_path: Path) -> None:
    async with new_log(tmp_path) as log:
        await log.create_topics(list(load_topics().values()))
        lost = lost_game(0)
        evaluated = msgspec.structs.replace(
            lost_game(1), event_id="of an evaluation", game_id=game_id(RUN, "eval", 1), split="eval"
        )
        await log.append([record_from_event(event) for event in (lost, evaluated)])
        wanted = {trajectory_id(game.game_id, 0): game.occurred_at_ms for game in (lost, evaluated)}
        counting: Any = _Counting(log)

        async def found() -> dict[int, list[str]]:
            return await promised_steps(counting, RUN, wanted, filter_opponent_invalid=False, model=None)

        promised = {0: [step.event_id for step in steps(TURNS)]}
        assert await found() == promised
        assert counting.begun == 1  # an evaluation game promises nothing, which is known then
