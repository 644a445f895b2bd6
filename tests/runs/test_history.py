"""What is known of a run is a fold of its events: the same in any order, however often they are delivered."""

import secrets
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import made
from unstable_stream.errors import RunError
from unstable_stream.events import (
    Checkpoint,
    Event,
    GameAbandoned,
    LearnerUpdate,
    Metrics,
    RunFinished,
    RunResumed,
    RunStarted,
    event_id,
)
from unstable_stream.events.run_ids import KnownRun, pick_run
from unstable_stream.log.port import EventLog, Record
from unstable_stream.log.records import record_from_event
from unstable_stream.log.topic_drift import create_declared_topics
from unstable_stream.log.topics import load_topics
from unstable_stream.runs.config import parse_config
from unstable_stream.runs.history import RunHistory, find_run, list_runs, read_history, run_started
from unstable_stream.runs.life import LOST_AFTER_MS, silence_of, state_of
from unstable_stream.runs.recording import finish_run, start_run
from unstable_stream.runs.resume import resume_run

_CONFIG = {"model": "tiny-player", "train_envs": [{"env_id": "TicTacToe-v0-train"}]}


def started(run: str, at_ms: int = 1000, **parent: Any) -> RunStarted:
    name = f"name of {run}"
    return made(RunStarted, run_id=run, occurred_at_ms=at_ms, name=name, config=_CONFIG, **parent)


def resumed(run: str, number: int) -> RunResumed:
    config = _CONFIG | {"seed": number}
    return made(RunResumed, run_id=run, occurred_at_ms=2000 + number, resumption=number, config=config)


def finished(run: str, number: int, outcome: str, updates: int = 0) -> RunFinished:
    ended: dict[str, Any] = {"occurred_at_ms": 3000 + number, "outcome": outcome, "updates": updates}
    return made(RunFinished, event_id=event_id(run, "run-finished", number), run_id=run, **ended)


def update(run: str, number: int) -> LearnerUpdate:
    return made(LearnerUpdate, run_id=run, update=number)


def checkpoint(run: str, iteration: int) -> Checkpoint:
    return made(Checkpoint, run_id=run, iteration=iteration)


def folded(*events: Event) -> RunHistory:
    history = RunHistory()
    for event in events:
        history.apply(event)
    return history


LIVES: tuple[Event, ...] = (
    started("run-a"),
    finished("run-a", 0, "stopped", 2),
    resumed("run-a", 1),
    finished("run-a", 1, "failed", 3),
    resumed("run-a", 2),
    started("run-b", 500, parent_run_id="run-a", parent_update=4, parent_games=70),
    *(checkpoint("run-b", iteration) for iteration in (0, 2, 4, 6, 7)),
    finished("run-b", 0, "completed", 3),
    started("run-c", 2000, parent_run_id="run-a"),
    *(update("run-c", number) for number in (1, 2, 3, 5)),
    checkpoint("run-d", 1),
)


def facts(history: RunHistory) -> dict[str, tuple[object, ...]]:
    return {
        run.run_id: (run.began, run.resumed, run.ended, run.state, run.updates)
        for run in history.runs.values()
    }


@given(st.permutations([*LIVES, *LIVES[::2]]))
def test_any_order_with_redelivered_events_gives_the_same(events: list[Event]) -> None:
    assert facts(folded(*events)) == facts(folded(*LIVES))


def test_each_run_stands_as_its_events_say() -> None:
    history = folded(*LIVES)
    a, b, c, d = (history.runs[f"run-{letter}"] for letter in "abcd")
    # The second resumption has not ended, whatever was said of those before.
    assert (a.state, a.resumptions, a.updates, a.ended) == ("running", 2, 3, None)
    assert (b.state, b.updates_before, b.games_before, b.updates) == ("completed", 4, 70, 3)
    assert (b.replayed_run_id, c.replayed_run_id) == (None, "run-a")
    assert (c.state, c.updates, c.name, c.started_at_ms) == ("running", 4, "name of run-c", 2000)
    assert (d.began, d.name, d.started_at_ms, d.settings) == (None, "", 0, {})
    assert history.finished() == {"run-b"}
    assert [run.run_id for run in history.newest_first()] == ["run-c", "run-a", "run-b", "run-d"]
    assert repr(b) == "<RunStatus run-b: completed, 3 updates>"


def test_updates_of_a_fork_count_from_where_it_began() -> None:
    began = started("f", parent_run_id="p", parent_update=4)
    assert folded(began, *(checkpoint("f", number) for number in (3, 4, 9))).runs["f"].updates == 5
    assert folded(began, checkpoint("f", 4)).runs["f"].updates == 0


def test_the_configuration_is_that_of_the_latest_resumption() -> None:
    run = folded(*LIVES).find("run-a")
    assert (run.first_config().seed, run.config().seed) == (parse_config(_CONFIG).seed, 2)
    assert run.settings["seed"] == 2
    with pytest.raises(RunError, match="run run-d has no run-started event"):
        folded(*LIVES).runs["run-d"].config()


@pytest.mark.parametrize(("recorded", "carries"), [({}, False), ({"step_texts": None}, True)])
def test_steps_of_runs_from_before_there_were_texts_have_none(
    recorded: dict[str, None], carries: bool
) -> None:
    """Otherwise its steps, made again by verify, would differ from the recorded ones."""
    own = {"sampling": [{"type": "examples/extensions/sampling_transformation.py:clipped"}]}
    run = msgspec.structs.replace(started("a"), config=_CONFIG | {"rewards": own | recorded})
    assert folded(run).runs["a"].config().step_texts is carries


def test_games_leave_no_trace() -> None:
    history = folded(*LIVES)
    before = facts(history)
    for index in range(100):
        history.apply(made(GameAbandoned, run_id=f"run-{index}", game_index=index))
    assert facts(history) == before


@pytest.mark.parametrize(
    ("prefix", "found"),
    [
        ("run-", "'run-' is the beginning or the name of several runs: run-a, run-b, run-c"),
        ("x", "no run 'x' in this log; known runs: run-a, run-b, run-c"),
        ("run-d", "no run 'run-d' in this log"),  # no beginning of it has been read
    ],
)
def test_a_run_that_is_not_one_is_an_error_that_lists_what_is_there(prefix: str, found: str) -> None:
    history = folded(*LIVES)
    with pytest.raises(RunError, match=found):
        history.find(prefix)
    with pytest.raises(RunError, match=f"no run '{prefix}' in this log; known runs: run-a, run-b, run-c"):
        history.run(prefix)
    assert history.run("run-a") is history.find("run-a")


def test_a_run_is_meant_by_id_number_beginning_name_and_latest() -> None:
    known = [
        KnownRun("run", "first", True, 1),
        KnownRun("run-2", "second", True, 2),
        KnownRun("eval-run", "third", False, 4),
    ]
    meant = {word: pick_run(word, known) for word in ("run", "run-", "2", "4", "second", "e", "latest")}
    assert list(meant.values()) == ["run", "run-2", "run-2", "eval-run", "run-2", "eval-run", "run-2"]
    for word, says in (
        ("x", "no run 'x' in this log; known runs: eval-run, run, run-2"),
        ("3", "no run '3'"),
        ("ru", "'ru' is the beginning or the name of several runs: run, run-2"),
    ):
        with pytest.raises(RunError, match=says):
            pick_run(word, known)
    with pytest.raises(RunError, match="no run that trains in an archive; known runs: eval-run"):
        pick_run("latest", known[2:], "an archive")


async def test_nothing_is_recorded_of_a_run_that_only_begins_alike(any_log: EventLog) -> None:
    await create_declared_topics(any_log, load_topics())
    run, config = f"alike-{secrets.token_hex(6)}", parse_config(_CONFIG)
    await start_run(any_log, config, run)
    for ask in (
        resume_run(any_log, run[:-1], config),
        finish_run(any_log, run[:-1], "stopped", "a person"),
        run_started(any_log, run[:-1]),
    ):
        with pytest.raises(RunError, match=f"no run '{run[:-1]}'"):
            await ask
    assert run[:-1] not in (await read_history(any_log)).runs


async def test_a_life_is_written_and_read_back(any_log: EventLog) -> None:
    await create_declared_topics(any_log, load_topics())
    run, config = f"life-{secrets.token_hex(6)}", parse_config(_CONFIG)
    began = await start_run(any_log, config, run)
    await any_log.append([record_from_event(update(run, number)) for number in (1, 2, 2)])
    await any_log.append([Record("runs", run, b"nonsense")])
    await finish_run(any_log, run, "stopped", "a person")
    assert (await resume_run(any_log, run, config)).resumption == 1
    assert (await read_history(any_log)).find(run).state == "running"
    await any_log.append([record_from_event(checkpoint(run, number)) for number in (2, 3)])
    assert await find_run(any_log, run[:-2]) == (run, config)
    assert await run_started(any_log, run) == began
    (listed,) = [each for each in await list_runs(any_log) if each.run_id == run]
    assert (listed.state, listed.updates) == ("running", 3)
    await finish_run(any_log, run, "completed", "3 updates")
    assert (await read_history(any_log)).find(run).state == "completed"
    assert run in (await read_history(any_log)).finished()


async def test_a_run_without_a_sign_of_life_is_lost(any_log: EventLog) -> None:
    await create_declared_topics(any_log, load_topics())
    now_ms = time.time_ns() // 1_000_000
    silent, alive, ended = (f"{kind}-{secrets.token_hex(6)}" for kind in ("silent", "alive", "ended"))
    began_ms = now_ms - 3 * 3_600_000
    records: list[Event] = [started(run, began_ms) for run in (silent, alive, ended)]
    for run, at_ms in (silent, now_ms - 2 * LOST_AFTER_MS), (alive, now_ms - LOST_AFTER_MS // 2):
        records.append(made(Metrics, run_id=run, occurred_at_ms=at_ms, source="launcher", values={"up": 1.0}))
    await any_log.append(list(map(record_from_event, records)))
    await finish_run(any_log, ended, "stopped", "SIGTERM")

    found = {run.run_id: run for run in await list_runs(any_log)}
    assert [found[run].state for run in (silent, alive, ended)] == ["lost", "running", "stopped"]
    assert [found[run].silence for run in (silent, alive, ended)] == ["silent for 20 min", "", ""]
    await resume_run(any_log, silent, parse_config(_CONFIG))
    found = {run.run_id: run for run in await list_runs(any_log)}
    assert found[silent].state == "running"


@pytest.mark.parametrize(
    ("outcome", "silent_ms", "state", "silence"),
    [
        (None, 0, "running", ""),
        (None, LOST_AFTER_MS, "running", ""),
        (None, -5_000, "running", ""),  # another machine's clock
        (None, 12 * 60_000 + 59_000, "lost", "silent for 12 min"),
        (None, 119 * 60_000, "lost", "silent for 119 min"),
        (None, 5 * 3_600_000, "lost", "silent for 5 h"),
        (None, 90 * 86_400_000, "lost", "silent for 90 days"),
        ("failed", 90 * 86_400_000, "failed", ""),
    ],
)
def test_the_state_of_a_silent_run(outcome: str | None, silent_ms: int, state: str, silence: str) -> None:
    now_ms = 1_900_000_000_000
    assert state_of(outcome, now_ms - silent_ms, now_ms) == state
    assert silence_of(state, now_ms - silent_ms, now_ms) == silence


async def test_a_launcher_ends_only_its_own_part_of_a_run(any_log: EventLog) -> None:
    await create_declared_topics(any_log, load_topics())
    run, config = f"taken-{secrets.token_hex(6)}", parse_config(_CONFIG)
    await start_run(any_log, config, run)
    second = await resume_run(any_log, run, config)  # by another launcher, while the first one still runs
    await finish_run(any_log, run, "failed", "taken over", resumption=0)
    assert (await read_history(any_log)).find(run).state == "running"
    await finish_run(any_log, run, "completed", "3 updates", resumption=second.resumption)
    assert (await read_history(any_log)).find(run).state == "completed"
