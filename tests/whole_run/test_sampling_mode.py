"""A run goes on with another sampling mode: each game keeps the players that were drawn for it."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import unstable_stream as us
from tests.whole_run.processes import DEADLINE_S
from tests.whole_run.test_backends import UPDATES, StopAfterUpdate, config
from unstable_stream.events import Event, GameOutcome, GameStarted, RunResumed, RunStarted
from unstable_stream.log.open import opened_log
from unstable_stream.log.reading import read_to_end, readable_events
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.services.launch.launcher import launch

pytestmark = [pytest.mark.longer, pytest.mark.timeout(600)]


def recorded(data: DataDir, run_id: str) -> list[Event]:
    async def read() -> list[Event]:
        async with opened_log("local", data.log) as log:
            records = [record async for record in read_to_end(log, ("runs", "games", "game-outcomes"))]
        return [event for event in readable_events(records) if event.run_id == run_id]

    return asyncio.run(read())


def training_games(events: list[Event]) -> Iterator[GameStarted]:
    return (event for event in events if isinstance(event, GameStarted) and event.split == "train")


def opponents(game: GameStarted) -> set[str]:
    """Return who plays besides the newest policy; mirror self-play has nobody."""
    return {seat.model_uid for seat in game.seats if not seat.trained}


@pytest.mark.parametrize("mode", ["fixed", "match-quality", "pfsp-hard"])
def test_a_change_of_the_mode_in_mid_run_is_recorded_and_holds_for_the_games_after_it(
    tmp_path: Path, mode: str
) -> None:
    data = DataDir(tmp_path)
    watcher = StopAfterUpdate()
    settings = config(
        backend="inline",
        model_pool={"sample_mode": "mirror", "fixed": [{"name": "random-legal"}]},
        engine={"type": "transformers", "dtype": "float32"},
    )
    begun = asyncio.run(
        asyncio.wait_for(launch(settings, data, watch=watcher, stop=watcher.stop), DEADLINE_S)
    )
    assert begun.outcome == "stopped"
    planned = {game.game_id: game for game in training_games(recorded(data, begun.run_id))}
    assert planned
    assert [game for game in planned.values() if opponents(game)] == [], "mirror self-play meets nobody else"

    run = us.open_run(begun.run_id, tmp_path).resume(sample_mode=mode, iterations=2 * UPDATES, live=False)

    assert run.state == "completed"
    events = recorded(data, run.id)
    starts = {game.game_id: game for game in training_games(events)}
    drawn = [opponents(game) for game_id, game in starts.items() if game_id not in planned]
    assert len(drawn) > 10
    assert any(drawn), "somebody else is met now"
    assert mode != "fixed" or all(met == {"random-legal"} for met in drawn)
    # Those that the stop interrupted are played as they were drawn, by the rule of that time.
    assert {game_id: starts[game_id] for game_id in planned} == planned
    for outcome in (event for event in events if isinstance(event, GameOutcome) and event.split == "train"):
        played = [(seat.seat, seat.model_uid) for seat in outcome.seats]
        assert played == [(seat.seat, seat.model_uid) for seat in starts[outcome.game_id].seats]
    modes = [e.config["model_pool"]["sample_mode"] for e in events if isinstance(e, RunStarted | RunResumed)]
    assert modes == ["mirror", mode]
    assert us.open_run(run.id, tmp_path).config.model_pool.sample_mode == mode
    audited = run.audit()
    assert audited.problems == ()
    assert audited.updates == 2 * UPDATES
    verified = run.verify()
    assert verified.ok, verified.to_json()
    (collector,) = (check for check in verified.checks if check.name == "collector snapshot")
    assert collector.compared == 1, "the snapshot of the last collector was made with the new mode"
