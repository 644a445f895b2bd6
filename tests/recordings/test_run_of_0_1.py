"""A run that version 0.1 recorded can still be decoded, verified, archived and read.

Its checkpoint events name the paths of the machine it was made on; the files are found at hand all the same.
"""

import asyncio
import csv
import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from unstable_stream.events import Checkpoint
from unstable_stream.log.open import opened_log
from unstable_stream.log.reading import read_to_end
from unstable_stream.log.records import event_from_record
from unstable_stream.ui.cli import app

RECORDING = Path(__file__).with_name("run-of-0.1.tar.gz")
RUN = "recorded-20261122-041736-c937"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of the recording, its archive made from its log."""
    data = tmp_path_factory.mktemp("recorded")
    with tarfile.open(RECORDING) as bundle:
        bundle.extractall(data, filter="data")
    archived = CliRunner().invoke(app, ["archive", "--data", str(data)])
    assert archived.exit_code == 0, archived.output
    assert "0 of them could not be decoded" in archived.output
    return data


def ask(data: Path, *arguments: str) -> str:
    """Return what a command prints about the recording."""
    result = CliRunner().invoke(app, [*arguments, "--data", str(data)])
    assert result.exit_code == 0, result.output
    return result.stdout


def rows(data: Path, query: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(ask(data, "sql", query, "--csv"))))


def test_it_is_verified_whole(recorded: Path) -> None:
    report = json.loads(ask(recorded, "verify", RUN, "--jobs", "1", "--json"))
    assert report["clean"]
    compared = {check["name"]: check["compared"] for check in report["checks"]}
    assert compared == {
        "steps": 83,
        "ratings": 144,
        "games": 43,
        "trajectories": 50,
        "game starts": 43,
        "updates": 3,
        "steps used": 72,
        "checkpoint files": 3,
        "snapshots": 0,
        "collector snapshot": 0,
    }


def test_the_checkpoint_files_beside_it_are_those_it_recorded(recorded: Path) -> None:
    async def checkpoints() -> list[Checkpoint]:
        async with opened_log("local", recorded / "log.sqlite", existing=True) as log:
            events = [event_from_record(record) async for record in read_to_end(log, (Checkpoint.TOPIC,))]
        return [event for event in events if isinstance(event, Checkpoint)]

    digests = {event.model_uid: event.sha256 for event in asyncio.run(checkpoints())}
    assert digests.pop("ckpt-000000") is None
    found = {
        directory.name: hashlib.sha256((directory / "adapter_model.safetensors").read_bytes()).hexdigest()
        for directory in (recorded / "checkpoints" / RUN).iterdir()
    }
    assert digests == found
    assert len(found) == 3


def test_it_can_be_queried(recorded: Path) -> None:
    assert rows(recorded, "SELECT run_id, state FROM runs") == [{"run_id": RUN, "state": "completed"}]
    counts = """SELECT (SELECT count(*) FROM game_outcomes) AS games, (SELECT count(*) FROM steps) AS steps,
                       (SELECT count(*) FROM updates) AS updates, (SELECT count(*) FROM ratings) AS ratings"""
    assert rows(recorded, counts) == [{"games": "43", "steps": "83", "updates": "3", "ratings": "144"}]


def test_its_games_can_be_listed_and_read(recorded: Path) -> None:
    listed = list(
        csv.DictReader(io.StringIO(ask(recorded, "games", "--csv", "--state", "finished", "--limit", "100")))
    )
    assert len(listed) == 43
    assert {game["run"] for game in listed} == {RUN}
    transcript = ask(recorded, "games", "show", listed[0]["game"])
    assert "random-legal" in transcript


def test_an_update_can_be_walked_back_to_its_games(recorded: Path) -> None:
    told = ask(recorded, "why", "--update", "2")
    assert "24 steps trained on, 0 dropped, loss -0.04732" in told
    assert "was made by update 1" in told


def test_a_report_can_be_made(recorded: Path) -> None:
    pytest.importorskip("plotly")
    page = recorded / "report.html"
    ask(recorded, "report", RUN, "-o", str(page))
    assert RUN in page.read_text(encoding="utf-8")
