"""A recorded run answers from Python: SQL, games, proofs, what-if, replay, fork."""

import asyncio
import json
import shutil
import signal
import threading
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import pytest

import unstable_stream as us
from tests.history.proofs.recorded_run import ENVS, UPDATES
from tests.places import recorded
from tests.tiers import chosen
from unstable_stream.api.loops import iterate
from unstable_stream.errors import ArchiveError, ConfigError, EngineError, EventLogError, RunError
from unstable_stream.events import GameOutcome, LearnerUpdate

pytestmark = pytest.mark.longer

RUN, OTHER = "run-asked", "another"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with two finished runs of three updates, on the log and in the archive."""
    place = recorded(tmp_path_factory.mktemp("data"), RUN, hosted=False)
    return recorded(place.root, OTHER, hosted=False, games=2, updates=False).root


@pytest.fixture
def run(data: Path) -> us.Run:
    return us.open_run("run-a", data)


def test_a_run_is_opened_by_the_beginning_of_its_id(run: us.Run, data: Path) -> None:
    assert (run.id, run.state, run.config.seed) == (RUN, "completed", 11)
    assert repr(run) == f"<Run {RUN}: completed>"
    assert {status.run_id for status in us.list_runs(data)} == {RUN, OTHER}
    with pytest.raises(RunError, match="known runs: another, run-asked"):
        us.open_run("nothing", data)


def test_sql_of_a_run_sees_only_this_run(run: us.Run, data: Path) -> None:
    everybody = us.sql("SELECT DISTINCT run_id FROM run_events ORDER BY 1", data=data)
    assert everybody.rows() == [(OTHER,), (RUN,)]
    assert run.sql("SELECT DISTINCT run_id FROM run_events").rows() == [(RUN,)]
    # Views too, also those that do not show whose rows they are made of.
    assert run.sql("SELECT run_id FROM runs").rows() == [(RUN,)]
    (finished,) = run.sql("SELECT games_finished FROM ledger").rows()
    assert finished == (15 * UPDATES,)
    assert run.sql("SELECT count(*) FROM updates WHERE update > $1", [1]).rows() == [(2,)]
    with pytest.raises(ArchiveError, match="does not exist"):
        run.sql("FROM update")


def test_an_answer_is_rows_arrow_and_a_table_to_look_at(run: us.Run) -> None:
    answer = run.sql("SELECT range AS number, '<b>' || chr(27) || '[31m' AS text FROM range(30)")
    assert answer.columns == ["number", "text"]
    assert (len(answer), answer[2][0], answer.arrow().num_rows) == (30, 2, 30)
    assert answer.dicts()[29]["number"] == 29
    assert "30 rows, 20 shown" in repr(answer)
    assert "\x1b" not in repr(answer)
    html = answer._repr_html_()
    assert html.count("<tr>") == 21
    assert "&lt;b&gt;" in html


def test_an_answer_is_a_data_frame(run: us.Run) -> None:
    pytest.importorskip("pandas")
    frame = run.sql("SELECT update, loss FROM updates ORDER BY update").df()
    assert list(frame.columns) == ["update", "loss"]
    assert frame["update"].tolist() == [1, 2, 3]


def test_games_are_found_and_shown(run: us.Run, capsys: pytest.CaptureFixture[str]) -> None:
    games = run.games(env=ENVS[0], sort="earliest", limit=None)
    assert games
    assert {game.run_id for game in games} == {RUN}
    game = games[0]
    assert len(game.turns) == game.moves
    game.show()
    shown = capsys.readouterr().out
    assert game.id in shown
    assert ENVS[0] in shown
    with pytest.raises(ConfigError, match="split='test': expected one of train, eval"):
        run.games(split="test")  # type: ignore[arg-type]


def test_the_proofs(run: us.Run) -> None:
    audit = run.audit()
    assert (audit.ok, audit.updates) == (True, UPDATES)
    report = run.verify(games=False)
    assert (report.run_id, report.ok) == (RUN, True)


async def test_it_answers_where_an_event_loop_runs(data: Path) -> None:
    run = us.open_run(RUN, data)
    assert run.audit().ok
    assert len(list(run.replay(topics=["learner-updates"]))) == UPDATES


def test_ratings_and_rewards_as_they_would_be(run: us.Run, data: Path) -> None:
    assert run.rerate(dry_run=True).changed == 0
    assert run.rerate("elo", k=16, dry_run=True).games == 15 * UPDATES
    with pytest.raises(ConfigError, match="means nothing to elo"):
        run.rerate("elo", tau=0.1)
    same = run.rederive({}, dry_run=True)
    assert (same.updates, same.differing) == (UPDATES, 0)
    other = run.rederive({"step": [us.RewardForFormat(2.0, 2.0)]}, label="more")
    assert other.differing > 0
    assert (data / "what-if" / RUN / "more" / "about.json").is_file()


def test_history_is_replayed_in_order(run: us.Run, tmp_path: Path) -> None:
    outcomes = [event for event in run.replay(topics=["game-outcomes"]) if isinstance(event, GameOutcome)]
    assert [outcome.game_index for outcome in outcomes] == sorted(o.game_index for o in outcomes)
    assert len(outcomes) == 15 * UPDATES
    lines: list[bytes] = []
    run.replay(topics=["learner-updates"]).write(lines.append)
    bodies = [json.loads(line)["event"] for line in b"".join(lines).splitlines()]
    assert [body["update"] for body in bodies] == [1, 2, 3]
    assert run.replay(topics=["learner-updates"]).copy(str(tmp_path / "copy")) == UPDATES
    first = next(iter(run.replay(topics=["learner-updates"])))  # leaving early ends its thread
    assert isinstance(first, LearnerUpdate)


def test_where_an_update_comes_from(run: us.Run) -> None:
    why = run.why(update=2)
    assert repr(why).startswith(f"update 2  of run {RUN}")
    assert json.loads(why.to_json())["root"] == f"update:{RUN}:2"


def test_a_fork_is_built_with_changes(run: us.Run, data: Path) -> None:
    envs = [{"env_id": ENVS[0], "template": "tictactoe-board"}]  # which the tiny player can read
    fork = run.fork(at=0, learning_rate=5e-4, iterations=7, train_envs=envs)
    learner = fork.config.learner
    assert (fork.state, learner.learning_rate, learner.iterations) == ("built", 5e-4, 7)
    more = run.config.learner.iterations + 1
    refused: list[tuple[Callable[[], object], type[Exception], str]] = [
        (lambda: run.fork(at=0, seed=3), ConfigError, "a fork keeps its parent's seed"),
        (lambda: run.fork(at=9), RunError, "no checkpoint of update 9"),
        (run.start, RunError, "was started before"),
        (fork.resume, RunError, "was not started yet"),
        (run.wait, RunError, "nobody can wait"),
        (lambda: run.resume(batch_size=21, iterations=more), ConfigError, "a run keeps what its steps"),
    ]
    for ask, error, says in refused:
        with pytest.raises(error, match=says):
            ask()


def test_a_completed_run_is_resumed_for_more_updates_only(run: us.Run, data: Path) -> None:
    before = list(run.replay(topics=["runs"]))
    done = run.config.learner.iterations
    for resume in (run.resume, run.resumable_config):
        with pytest.raises(RunError, match=f"is completed: .* {done} updates.* N above {done}$"):
            resume(learning_rate=1e-4)
        with pytest.raises(RunError, match="is completed"):
            resume(iterations=done - 1)
    # More are refused for another reason: this run was made up, with games that its model cannot read.
    with pytest.raises(ConfigError, match="no token for"):
        run.resumable_config(iterations=done + 2)
    assert list(run.replay(topics=["runs"])) == before


def test_a_run_is_exported_and_reported(run: us.Run, tmp_path: Path) -> None:
    manifest = run.export(tmp_path / "parquet", tables=["updates"])
    assert manifest.tables["updates"].rows == UPDATES
    page = run.report(tmp_path / "report.html", samples=1)
    assert RUN in page.read_text()
    uids = [row["model_uid"] for row in run.checkpoints().dicts()]
    assert [uid for (uid,) in run.sql("SELECT model_uid FROM checkpoints ORDER BY iteration")] == uids


def test_without_a_log_it_is_said_where_one_is_missing(tmp_path: Path) -> None:
    with pytest.raises(EventLogError, match="no event log"):
        us.open_run("run", tmp_path)


def test_the_data_directory_is_enough(data: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(data, tmp_path / "moved")
    assert us.open_run(RUN, str(moved)).audit().ok


class Broken:
    """An engine that cannot be made on this machine."""

    def __init__(self, model_path: str) -> None:
        raise EngineError("no such device")

    generate = stats = close = None  # nobody asks it


@chosen("block", [False], [True])
def test_a_start_that_failed_is_gone_on_with_by_resume(tmp_path: Path, block: bool) -> None:
    run = us.build(
        model="tiny-player",
        train_envs=["TicTacToe-v0-train"],
        evaluation_opponents=["random-legal"],
        engine=Broken,
        backend="inline",
        data=tmp_path,
    )
    assert run.state == "built"
    with pytest.raises(ConfigError, match="no such device"):
        run.start(block=block, live=False).wait()
    assert run.state == "failed"
    with pytest.raises(RunError, match="was started before"):
        run.start()
    with pytest.raises(ConfigError, match="no such device"):
        run.resume(block=block, live=False).wait()
    assert us.open_run(run.id, tmp_path).state == "failed"


def test_an_iteration_that_is_interrupted_closes_its_generator_where_it_waits() -> None:
    closed = asyncio.Event()

    async def numbers() -> AsyncGenerator[int, None]:
        try:
            yield 1
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            closed.set()

    following = iterate(numbers())
    assert next(following) == 1
    with pytest.raises(KeyboardInterrupt):
        next(following)
    assert closed.is_set()
