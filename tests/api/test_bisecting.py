"""The update that broke a run is found, with what is unusual about it: of a real run and a made-up one."""

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

import unstable_stream as us
from tests.api.conftest import train
from tests.archive.history import GAMES_PER_UPDATE, made_up_run
from tests.places import append, archived, ask
from unstable_stream.errors import ArchiveError, ConfigError, RunError
from unstable_stream.events import Event, Step

pytestmark = pytest.mark.longer

BROKEN = 5
BLOCK = "60 games against random-legal"
LAST = 8
OF_UPDATE = "FROM updates WHERE update = $update"


def silent(line: str) -> None:
    """Report nothing."""


def bisect(run: us.Run | str, metric: str = "", **how: Any) -> Any:
    return us.bisect(run, metric, report=how.pop("report", silent), **how)


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> us.Run:
    """A run of which one update was made at a thousand times the learning rate."""
    data = tmp_path_factory.mktemp("broken")
    small: dict[str, Any] = {
        "name": "broken",
        "max_tokens": 1,
        "batch_size": 32,
        "mini_batch_size": 32,
        "evaluation_opponents": ["random-legal"],
        "max_eval_games_per_ckpt": 60,
    }
    run = train(data, iterations=BROKEN - 1, learning_rate=0.002, **small)
    run.resume(live=False, iterations=BROKEN, learning_rate=2.0)
    return us.open_run(run.id, data).resume(live=False, iterations=LAST, learning_rate=0.002)


def evaluations(run: us.Run) -> int:
    return len(us.list_runs(run.place.root)) - 1


def test_a_learning_rate_that_broke_a_run_is_found_and_named(broken: us.Run) -> None:
    lines: list[str] = []
    found = bisect(broken, "win rate against random-legal", games=120, report=lines.append)
    assert (found.good, found.bad) == (BROKEN - 1, BROKEN)
    assert len(found.measured) <= math.ceil(math.log2(LAST + 1)) + 2
    assert [each.good for each in found.measured] == [each.update < BROKEN for each in found.measured]
    strongest = found.unusual[0]
    assert (strongest.update, strongest.name, strongest.value) == (BROKEN, "learning_rate", 2.0)
    assert (found.suspect, bool(found.learned_from)) == (BROKEN, True)
    words = "\n".join(found.sentences())
    assert f"Update {BROKEN} broke it." in words
    assert "learning_rate 2, usually 0.002 (all the others alike)" in words
    options = f"--data {broken.place.root}"
    assert found.commands == {
        "Its causes": f"unstable-stream why --run {broken.id} --update {BROKEN} {options}",
        "Go back before it": f"unstable-stream fork {broken.id} --at {BROKEN - 1} {options}",
    }
    assert len(lines) == evaluations(broken)
    # The run's own games count: of the updates that it evaluated the first block is not played.
    assert f"update 6: {BLOCK}" in lines
    assert max(lines.count(f"update {update}: {BLOCK}") for update in (0, 4, 5, LAST)) <= 1
    played = evaluations(broken)
    again = bisect(broken, games=120)
    assert (again.good, again.bad, again.measured) == (found.good, found.bad, found.measured)
    assert evaluations(broken) == played


def test_of_deleted_checkpoints_the_updates_between_are_said(broken: us.Run, tmp_path: Path) -> None:
    stored = broken.place.root.glob(f"checkpoints/*/ckpt-00000[{BROKEN - 1}{BROKEN}]-*")
    moved = [(files, files.rename(tmp_path / files.name)) for files in list(stored)]
    try:
        found = bisect(broken, command=f"sh -c 'test {{update}} -lt {BROKEN}'")
    finally:
        for files, there in moved:
            there.rename(files)
    assert len(moved) == 2
    assert (found.good, found.bad) == (BROKEN - 2, BROKEN + 1)
    assert f"One of the updates {BROKEN - 1} to {BROKEN + 1} broke it" in found.sentences()[1]
    assert BROKEN in {each.update for each in found.unusual}


def test_sql_and_the_command_line_find_what_a_run_recorded(broken: us.Run) -> None:
    question = f"SELECT -metrics['learning_rate'] {OF_UPDATE}"
    done = ask(broken.place.root, "bisect", broken.id, "--sql", question, "--bad", str(BROKEN), "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["bad"] == BROKEN
    done = ask(broken.place.root, "bisect", broken.id, "--sql", question)
    assert done.exit_code == 1
    assert f"No fall: -0.002 at update 1 and -0.002 at update {LAST}" in done.stdout


@pytest.mark.parametrize(
    ("how", "good"),
    [
        ({"command": "true"}, [True, True]),
        ({"command": "false"}, [False, False]),
        ({"sql": f"SELECT update {OF_UPDATE}"}, [True, True]),
    ],
)
def test_where_nothing_fell_no_end_is_marked_bad_that_is_as_good(
    broken: us.Run, how: dict[str, Any], good: list[bool]
) -> None:
    found = bisect(broken, **how)
    assert found.bad is None
    assert [each.good for each in found.measured if each.value is not None] == good


def test_ends_that_the_games_do_not_tell_apart_are_not_certain(broken: us.Run) -> None:
    found = bisect(broken, games=20, good=0, bad=1)
    assert (found.bad, [each.games for each in found.measured]) == (None, [20, 20])
    assert [each.certain for each in found.measured] == [True, False]


@pytest.mark.parametrize(("before", "after"), [("1e999", "-1e999"), ("0", "'nan'::DOUBLE")])
def test_a_number_that_is_not_finite_falls_as_others_do(broken: us.Run, before: str, after: str) -> None:
    found = bisect(broken, sql=f"SELECT if(update < {BROKEN}, {before}, {after}) {OF_UPDATE}")
    assert (found.good, found.bad) == (BROKEN - 1, BROKEN)


def test_a_command_may_leave_out_what_it_cannot_judge(broken: us.Run) -> None:
    script = f"case {{update}} in {BROKEN}) exit 125;; esac; test -e {{path}} -a {{update}} -lt {BROKEN}"
    found = bisect(broken, command=f"sh -c '{script}'", good=1)
    assert (found.good, found.bad) == (BROKEN - 1, BROKEN + 1)
    assert {each.update: each.good for each in found.measured}[BROKEN] is None


@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        ({"metric": "loss"}, ConfigError, "expected 'win rate against OPPONENT'"),
        ({"metric": "win rate against random-legl"}, ConfigError, "did you mean random-legal"),
        ({"sql": "SELECT 1", "command": "true"}, ConfigError, "give one of them"),
        ({"sql": "SELECT 1"}, ConfigError, r"names no \$update: add .WHERE update = \$update"),
        ({"sql": f"SELECT 'much' {OF_UPDATE}"}, ConfigError, r"\('much',\): expected one number"),
        ({"sql": f"SELECT 1, 2 {OF_UPDATE}"}, ConfigError, "expected one number"),
        ({"sql": f"SELECT 1 {OF_UPDATE} + 99"}, RunError, "fewer than two updates can be measured"),
        ({"sql": f"SELECT 1 {OF_UPDATE}", "good": 0}, RunError, "update 0 cannot be measured"),
        ({"sql": "FROM nowhere WHERE update = $update"}, ArchiveError, "nowhere"),
        ({"command": "no-such-command"}, ConfigError, "cannot be run"),
        ({"command": "judge 'once"}, ConfigError, 'command "judge \'once": No closing quotation'),
        ({"command": " "}, ConfigError, "command ' ': expected a program"),
        ({"command": "sh -c 'exit 127'"}, RunError, "ended with status 127"),
        ({"good": 5, "bad": 4}, ConfigError, "good = 5 is not before bad = 4"),
        ({"bad": 99}, RunError, "nothing of update 99 to measure; it has of 0, 1, 2"),
        ({"run": "broken@3"}, ConfigError, "without an update"),
        ({"run": "broken@white"}, ConfigError, "expected a run, or RUN@MODEL"),
        ({"run": "nothing"}, RunError, "no run 'nothing'"),
        ({"games": 0}, ConfigError, "games=0: expected at least 1"),
    ],
)
def test_a_mistake_is_told_and_nothing_is_played(
    broken: us.Run, how: dict[str, Any], error: type[Exception], words: str
) -> None:
    before = evaluations(broken)
    with pytest.raises(error, match=words):
        bisect(**{"run": broken.id, "data": broken.place.root, **how})
    assert evaluations(broken) == before


def flipped(update: int) -> list[Event]:
    """Return the made-up run with the rewards of the steps behind an update turned round."""
    games = range((update - 1) * GAMES_PER_UPDATE, update * GAMES_PER_UPDATE)
    config = {"model": "tiny-player", "train_envs": ["TicTacToe-v0-train"]}
    began, *events = made_up_run("run-a", updates=9)
    return [
        msgspec.structs.replace(began, config=config),
        *(
            msgspec.structs.replace(event, reward=-event.reward)
            if isinstance(event, Step) and event.game_index in games
            else event
            for event in events
        ),
    ]


def test_a_flipped_reward_is_named(tmp_path: Path) -> None:
    events = flipped(8)
    append(tmp_path, events)
    archived(tmp_path, events)
    found = bisect("run-a", sql=f"SELECT if(update < 8, 0.6, 0.2) {OF_UPDATE}", data=tmp_path)
    assert (found.good, found.bad) == (7, 8)
    named = {each.name: each.value for each in found.unusual}
    assert named["correlation of reward and result"] == pytest.approx(-1.0)
    with pytest.raises(ConfigError, match="was evaluated against nobody"):
        bisect("run-a", data=tmp_path)
    with pytest.raises(RunError, match="1 checkpoints, and to bisect takes two"):
        bisect("run-a", metric="win rate against random-legal", data=tmp_path)
