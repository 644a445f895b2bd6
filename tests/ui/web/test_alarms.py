"""What is wrong with a run, in words, with what to do: read from recorded trouble, and of this machine."""

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.archive.history import START_MS, made_up_run
from tests.builders import made
from tests.history.views.conftest import ATTACK
from tests.ui.web.conftest import shown
from unstable_stream.api.doctor import Examined
from unstable_stream.events import (
    CollapseWarning,
    Event,
    GameOutcome,
    Metrics,
    RecordRejected,
    RunFinished,
    RunStarted,
)
from unstable_stream.ui.cli.commands import COMMANDS
from unstable_stream.ui.web.alarms import GroupLag, disk_alarms, lag_alarms

_NOTHING = '<p class="big">Nothing is wrong.</p>'


def _run(*more: Event, **how: Any) -> list[Event]:
    return [*made_up_run("run-c", updates=1, **how), *more]


def _collapse(update: int) -> Event:
    says = {"rule": "illegal", "signal": "legal", "value": 0.1, "reference": 1.0, "text": f"{ATTACK}{update}"}
    return made(
        CollapseWarning, event_id=f"c{update}", run_id="run-c", update=update, began=3, fork_at=2, **says
    )


def _report(name: str, value: float, source: str = "launcher", at_ms: int = START_MS) -> Event:
    fields = {"source": source, "values": {name: value}}
    return made(Metrics, event_id=name, run_id="run-c", occurred_at_ms=at_ms, **fields)


# An hour ahead: a suite may take long from here to the test, and the run is not to be lost by then.
_NOW = _report("alive", 1.0, at_ms=time.time_ns() // 1_000_000 + 3_600_000)
_DOWN = _report("services/learner/up", 0.0)
_FAILED = made(
    RunFinished, run_id="run-c", occurred_at_ms=START_MS + 99_000, outcome="failed", reason=f"out of {ATTACK}"
)
_REJECTED = [
    made(RecordRejected, run_id="run-c", consumer="archiver", topic="steps", offset=offset, reason=ATTACK)
    for offset in (1, 2)
]
_CASES: list[tuple[list[Event], Sequence[str]]] = [
    (_run(), [_NOTHING]),
    (_run(_FAILED, finished=False), ["It failed: out of ", "unstable-stream train --resume run-c --data"]),
    (_run(finished=False), ["It is lost: silent for ", "unstable-stream train --resume run-c --data"]),
    (_run(_collapse(4)), ["A sign of a collapse at update 4: ", "unstable-stream fork run-c --at 2 --data"]),
    (_run(_collapse(4), _collapse(7)), ["2 signs of a collapse, the last at update 7", "run-c&amp;update=7"]),
    (_run(*_REJECTED), ["2 records were rejected; archiver: ", "log tail dead-letters", "/sql?q="]),
    (_run(_report("alerts/<i>slow</i>", 0.5, "watch")), ["&lt;i&gt;slow&lt;/i&gt;: 0.5, says watch"]),
    (_run(_report("services/learner/restarts", 1.0)), ["learner was restarted once."]),
    (_run(_DOWN, _NOW, finished=False), ["learner is down.", "The log does not answer: "]),
    (_run(_DOWN), [_NOTHING]),  # it is over
]  # fmt: skip


@pytest.mark.parametrize(("events", "says"), _CASES, ids=[says[0][:20] for _, says in _CASES])
def test_each_trouble_is_a_line_with_what_to_do(
    tmp_path: Path, events: list[Event], says: Sequence[str]
) -> None:
    with shown(tmp_path, *events) as (client, base):
        answer = client.get(f"{base}/runs/run-c/wrong").text
        page = client.get(f"{base}/runs/run-c").text
    assert [text for text in says if text not in answer] == []
    assert (_NOTHING in answer) == (says[0] == _NOTHING)
    assert says[0] in page, "what the archive knows is there at once"
    assert ATTACK not in answer + page


def test_the_commands_that_alarms_name_are_there(tmp_path: Path) -> None:
    known = {name for names in COMMANDS.values() for name in names}
    for events in (_run(_FAILED, *_REJECTED, _collapse(4), finished=False), _run(finished=False)):
        with shown(tmp_path / str(len(events)), *events) as (client, base):
            named = re.findall(r"unstable-stream ([a-z-]+)", client.get(f"{base}/runs/run-c/wrong").text)
        assert named
        assert set(named) <= known


def test_consumers_far_behind_and_a_full_disk_are_alarms() -> None:
    lags = [GroupLag("near", 1000, ["steps"]), GroupLag("far", 1001, ["games", "steps"])]
    (far,) = lag_alarms(lags)
    assert far.says == "far is 1,001 records behind on games, steps."
    assert far.command == "topics lag --watch"
    (full,) = disk_alarms(Examined("data", "warn", "/data: 1.0 GB free", "free some"))
    assert (full.says, full.remedy) == ("/data: 1.0 GB free: the run needs room to write.", "Free some.")
    assert list(disk_alarms(Examined("data", "ok", "/data: 99.0 GB free"))) == []


def test_the_top_says_how_long_it_takes_and_what_it_wins(tmp_path: Path) -> None:
    began, *rest = made_up_run("run-c", updates=3, finished=False)
    assert isinstance(began, RunStarted)
    began = msgspec.structs.replace(began, name=ATTACK, config={"learner": {"iterations": 10}})
    with shown(tmp_path, began, *rest, _NOW) as (client, base):
        page = client.get(f"{base}/runs/run-c").text
        listed = client.get(f"{base}/").text
    # Seven updates are left, of 6 s each.
    assert page.count("about 42 s left") == 1
    assert "last heard of" in page
    assert "<small>about 42 s left</small>" in listed
    assert "3 of 10 updates, 20 games" in page
    assert "<b>50.0 %</b> won against random</p>" in page
    assert "9.5 % to 90.5 % (95 %): 2 evaluation games of update 3" in page
    assert ATTACK not in page + listed


def test_a_run_that_is_over_says_after_how_long(tmp_path: Path) -> None:
    with shown(tmp_path, *made_up_run("run-c", updates=3)) as (client, base):
        page = client.get(f"{base}/runs/run-c").text
    assert (
        'state-completed">completed</span> after 21 s' in page
    )  # 20 games of a second each, and one for the end
    assert " left</" not in page


def _unreadable(event: Event) -> Event:
    """Of all but the latest game no board is known."""
    if not isinstance(event, GameOutcome) or event.game_index == 3:
        return event
    seats = [
        msgspec.structs.replace(seat, model_uid=ATTACK) if not seat.policy_version else seat
        for seat in event.seats
    ]
    return msgspec.structs.replace(event, env_id="Talk-v0", seats=tuple(seats))


def test_the_last_three_games_are_boards_or_texts_and_links(tmp_path: Path) -> None:
    with shown(tmp_path, *map(_unreadable, made_up_run("run-c", updates=1))) as (client, base):
        answer = client.get(f"{base}/runs/run-c/latest").text
        page = client.get(f"{base}/runs/run-c").text
    assert f'data-fetch="{base}/runs/run-c/latest"' in page
    assert answer.count(f'<a href="{base}/games/') == 3
    assert "eval 3" in answer
    assert "eval 2" in answer
    assert "eval 1" in answer
    assert answer.count('<svg class="board small"') == 1
    assert ATTACK not in answer
