"""``consume``, ``replay`` and ``track`` as a user meets them."""

import asyncio
import json
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.archive.history import made_up_run
from tests.command_line import PROGRAM, run_command
from tests.places import append, on_log
from tests.processes import completed
from unstable_stream.archive import query
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.port import partition_for_key
from unstable_stream.log.topics import load_topics

pytestmark = pytest.mark.longer

OUTCOMES = f"game-outcomes[{partition_for_key('run-a', load_topics()['game-outcomes'].partitions)}]"
PLUGIN = """
from unstable_stream import Context, consumer
from unstable_stream.events import GameOutcome

@consumer(state=dict)
def moves(event: GameOutcome, context: Context) -> None:
    context.state["moves"] = context.state.get("moves", 0) + event.num_turns
    context.emit("moves-so-far", context.state["moves"])

@consumer(retries=1, backoff_s=0.001)
def fails(event: GameOutcome, context: Context) -> None:
    if event.game_index == 3:
        raise KeyError("three")
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A data directory with a log, and a file of plug-ins."""
    (tmp_path / "plugins.py").write_text(PLUGIN)
    append(tmp_path / "unstable-data", made_up_run())
    return tmp_path


def run(cwd: Path, *arguments: str) -> CompletedProcess[str]:
    return run_command(*arguments, cwd=cwd)


def lines(result: CompletedProcess[str]) -> list[dict[str, object]]:
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_consume_and_look_at_the_metrics_with_sql(directory: Path) -> None:
    first = run(directory, "consume", "plugins.py:moves", "--until-end")
    assert (first.returncode, first.stdout) == (0, "")
    assert first.stderr == "moves: 38 events, 38 metrics, 0 set aside\n"
    again = run(directory, "consume", "plugins:moves", "--until-end", "--run", "run-a", "--from", "end")
    assert again.stderr == "moves: 0 events, 0 metrics, 0 set aside\n", "a run has a group of its own"
    assert run(directory, "archive").returncode == 0
    ((count, most),) = query(
        directory / "unstable-data" / "archive.duckdb",
        "SELECT count(*), max(value) FROM metrics WHERE source = 'plugin/moves' AND name = 'moves-so-far'",
    ).rows
    train = sum(2 + index % 5 for index in range(24))
    assert (count, most) == (38, train + 14 * 5)


def test_a_failing_plugin_says_what_it_set_aside_and_where(directory: Path) -> None:
    result = run(directory, "consume", "plugins.py:fails", "--until-end")
    assert result.returncode == 0
    # Game 3 of train and of eval.
    assert result.stderr.splitlines()[-1] == "fails: 36 events, 0 metrics, 2 set aside"
    assert "reason=\"KeyError: 'three' (at plugins.py:13 in fails)\"" in result.stderr


def test_consume_goes_on_live_and_ends_at_a_signal(directory: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "consume", "plugins.py:moves"],
        cwd=directory,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_for(directory, 38)
        append(directory / "unstable-data", made_up_run("run-b"))
        wait_for(directory, 76)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert errors.splitlines()[-1] == "moves: 76 events, 76 metrics, 0 set aside"


def wait_for(directory: Path, metrics: int) -> None:
    """Wait until the plug-in has published so many metrics."""

    async def see(log: LocalLog) -> None:
        consumer = await log.consumer(["metrics"])
        seen = 0
        while seen < metrics:
            seen += sum(record.key == "plugin/moves" for record in await consumer.poll(timeout_s=1.0))
        await consumer.close()

    on_log(directory / "unstable-data", lambda log: asyncio.wait_for(see(log), 60))


def test_replay_prints_a_slice_in_order(directory: Path) -> None:
    everything = lines(run(directory, "replay"))
    assert len(everything) == len(made_up_run())
    times = [int(str(line["timestamp_ms"])) for line in everything]
    assert times == sorted(times)
    some = lines(
        run(directory, "replay", "run-a", "--topics", "game-outcomes,steps", "--where", "type!=step")
    )
    assert [line["offset"] for line in some] == list(range(38))
    few = lines(run(directory, "replay", "--offsets", f"{OUTCOMES}@3..5"))
    assert [line["offset"] for line in few] == [3, 4]
    first, last = sorted(set(times))[2:4]
    window = [datetime.fromtimestamp(moment / 1000, tz=UTC).isoformat() for moment in (first, last + 1)]
    part = lines(run(directory, "replay", "--from", window[0], "--to", window[1], "--speed", "1000"))
    assert [line["timestamp_ms"] for line in part] == [time for time in times if first <= time <= last]


def test_replay_from_the_archive_into_another_log(directory: Path) -> None:
    assert run(directory, "archive").returncode == 0
    copied = run(directory, "replay", "run-a", "--source", "archive", "--into-log", "copy")
    assert copied.returncode == 0, copied.stderr
    assert copied.stderr == f"{len(made_up_run())} records copied to copy\n"
    described = run(directory, "topics", "describe", "games", "--data", "copy")
    assert described.stdout.split("partitions")[1].split()[:2] == ["8", "8"], described.stdout
    assert lines(run(directory, "replay", "--data", "copy")) == lines(run(directory, "replay"))


def test_replay_rehearses_a_plugin(directory: Path) -> None:
    metrics = lines(run(directory, "replay", "--consumer", "plugins.py:moves", "--where", "split=eval"))
    assert [metric["values"] for metric in metrics] == [{"moves-so-far": 5.0 * n} for n in range(1, 15)]
    failed = run(directory, "replay", "--consumer", "plugins.py:fails")
    assert failed.returncode == 1
    assert f"it failed at 2 events; first: {OUTCOMES}@" in failed.stderr


@pytest.mark.slow
def test_replay_trains_a_learner(directory: Path) -> None:
    from tests.services.workers.test_learner_service import config, steps
    from unstable_stream.runs.recording import start_run

    append(directory / "unstable-data", steps())
    on_log(directory / "unstable-data", lambda log: start_run(log, config(), "learner-test"))
    (directory / "offline.toml").write_text('name = "offline"\n')
    trained = run(
        directory, "replay", "learner-test", "--learner", "offline.toml", "--set", "learner.iterations=2"
    )
    assert trained.returncode == 0, trained.stderr
    run_id = trained.stdout.strip()
    assert run_id.startswith("offline-")
    assert "2 updates" in trained.stderr.splitlines()[-1]
    rows = query(
        directory / "unstable-data" / "archive.duckdb",
        "SELECT r.state, r.parent_run_id, count(*) FROM runs AS r JOIN updates USING (run_id) "
        "WHERE run_id = ? GROUP BY ALL",
        [run_id],
    ).rows
    assert rows == [("completed", "learner-test", 2)]
    assert run(directory, "audit", run_id).returncode == 0
    refused = run(directory, "train", "--resume", run_id)
    assert refused.returncode == 1
    assert f"unstable-stream fork {run_id}" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["consume"], "name a plug-in"),
        (["consume", "plugins.py:nope"], "no 'nope'; it has plugins.py:fails, plugins.py:moves"),
        (["consume", "plugins.py:moves", "--from", "yesterday"], "'yesterday': expected a time such as"),
        (["consume", "plugins.py:moves", "--run", "zzz"], "no run 'zzz'"),
        (["consume", "plugins.py:moves", "--data", "nowhere"], "no event log at nowhere"),
        (["replay", "--speed", "fast"], "--speed 'fast': expected max, or a number"),
        (["replay", "--speed", "0"], "--speed '0'"),
        (["replay", "--offsets", "steps@1"], "expected TOPIC[PARTITION]@FROM..TO"),
        (["replay", "--where", "x"], "expected KEY=VALUE"),
        (["replay", "--source", "archive"], "no archive at"),
        (["replay", "--into-log", "x", "--consumer", "y"], "--into-log and --consumer: give one of them"),
        (["replay", "--learner", "x.toml"], "trains on the steps of one run"),
        (["replay", "--epochs", "2"], "--set and --epochs go with --learner"),
        (["replay", "zzz"], "no run 'zzz' in this log; known runs: run-a"),
        (["track", "run-x", "--to", "jsonl"], "run-x"),
        (["processors", "--runtime", "faust"], "the faust runtime needs a Kafka log, found log 'local'"),
        (["processors", "--run", "nobody"], "no run 'nobody' in this log; known runs: run-a"),
        (["processors", "--data", "nowhere"], "no event log at nowhere/log.sqlite"),
        (["processors", "--log", "redis://x"], "expected 'local' or 'kafka://host:9092'"),
    ],
)
def test_a_mistake_is_one_line_on_stderr(arguments: list[str], says: str, directory: Path) -> None:
    result = run(directory, *arguments)
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert says in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_the_list_of_installed_plugins_may_be_empty(directory: Path) -> None:
    result = run(directory, "consume", "--list")
    assert result.returncode == 0
    assert "unstable_stream.consumers" in result.stderr


def test_a_finished_run_goes_to_json_lines(directory: Path) -> None:
    first = run(directory, "track", "run-a", "--to", "jsonl", "--out", "curves")
    assert (first.returncode, first.stdout) == (0, ""), first.stderr
    written = (directory / "curves" / "run-a" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert first.stderr == f"run-a: {len(written)} metrics events up to update 6; curves/run-a\n"
    again = run(directory, "track", "run-a", "--to", "jsonl", "--out", "curves")
    assert again.stderr == (
        f"run-a: 0 metrics events up to update 6, {len(written)} were there before; curves/run-a\n"
    )


@pytest.mark.long
def test_wandb_that_only_writes_files_says_how_to_send_them(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DATA", "CACHE", "CONFIG"):
        monkeypatch.setenv(f"WANDB_{name}_DIR", str(directory / name))
    monkeypatch.setenv("WANDB_MODE", "offline")
    # A process of its own: the package reads its environment once.
    track = (sys.executable, "-c", PROGRAM, "track", "run-a", "--to", "wandb", "--out", "curves")
    done = completed(*track, cwd=directory)
    assert done.returncode == 0, done.stderr
    assert "wandb sync curves/run-a/wandb/offline-run-*" in done.stderr.replace("\n", "")
