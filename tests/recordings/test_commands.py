"""What each command prints about recorded runs, as it was printed when they were recorded.

``python -m tests.recordings.test_commands`` writes the expected outputs again; review the difference.
"""

import re
import shlex
import tarfile
import tempfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

import unstable_stream as us
from unstable_stream.api.checkpoints import find_checkpoint, split_name
from unstable_stream.api.place import Place
from unstable_stream.errors import RunError
from unstable_stream.ui.cli import app

pytestmark = pytest.mark.longer

RECORDINGS = {version: Path(__file__).with_name(f"run-of-{version}.tar.gz") for version in ("0.1", "0.2")}
"""Of 0.2 two runs on TicTacToe and SimpleTak: one was killed and resumed, one is its fork. The checkpoint
events of 0.1 name the paths of the machine it was made on; the files are found at hand all the same.
"""
EARLIER = "recorded-20261122-041736-c937"
RUN = "recorded-20261127-184742-2f26"
FORK = "forked-20261127-185809-1db8"
EXPECTED = Path(__file__).with_name("outputs")
COMMANDS = {
    "archive": "archive",
    "audit": f"audit {RUN}",
    "collapse": f"collapse {RUN}",
    "export": f"export {RUN} --out DATA/exported",
    "games": f"games --run {RUN} --limit 100 --csv",
    "games-of-a-fork": f"games --run {FORK} --split eval --csv",
    "log": "log tail checkpoints --json",
    "rederive": f"rederive {RUN} --rewards DATA/rewards.toml --csv",
    "replay": f"replay {FORK} --topics game-outcomes,learner-updates,ratings",
    "rerate": f"rerate {RUN}",
    "runs": "runs --csv",
    "sql-counts": "sql 'FROM ledger' --csv",
    "sql-ratings": "sql 'FROM ratings ORDER BY ALL' --csv",
    "sql-updates": "sql 'FROM updates ORDER BY ALL' --csv",
    "sql-win-rates": "sql 'FROM win_rates ORDER BY ALL' --csv",
    "topics": "topics",
    "verify": f"verify {RUN} --jobs 1",
    "verify-of-a-fork": f"verify {FORK} --jobs 1",
    "watch": f"watch {RUN}",
    "why-checkpoint": f"why {FORK}:ckpt-000004",
    "why-update": f"why --run {RUN} --update 3",
    "games-of-0.1": "games --csv --state finished --limit 100",
    "show-of-0.1": "games show 535d969c",
    "sql-counts-of-0.1": "sql 'SELECT run_id, state, l.* FROM runs JOIN ledger AS l USING (run_id)' --csv",
    "verify-of-0.1": f"verify {EARLIER} --jobs 1",
    "why-update-of-0.1": "why --update 2",
}


def extract(data: Path) -> None:
    """Put each recording into a data directory and archive it."""
    for version, recording in RECORDINGS.items():
        with tarfile.open(recording) as bundle:
            bundle.extractall(data / version, filter="data")
        archived = CliRunner().invoke(app, ["archive", "--data", str(data / version)])
        assert archived.exit_code == 0
        assert "0 of them could not be decoded" in archived.output
    rewards = '[rewards]\nsampling = ["NormalizeRewards"]\n'
    (data / "0.2" / "rewards.toml").write_text(rewards, encoding="utf-8")


def printed(recorded: Path, command: str, version: str = "0.2") -> str:
    """Return what a command prints about a recording, without what differs between times and machines."""
    data = str(recorded / version)
    words = [word.replace("DATA", data) for word in shlex.split(command)]
    result = CliRunner().invoke(app, [*words, "--data", data], terminal_width=200)
    text = re.sub(r"[0-9.]+ m?s\b", "N s", result.output.replace(data, "DATA"))
    text = re.sub(r"-?\d+\.\d+(e-?\d+)?", lambda number: str(round(float(number[0]), 9) + 0.0), text)
    return f"{text}exit {result.exit_code}\n"


def answer(recorded: Path, name: str) -> str:
    """Return what the command of this name prints."""
    return printed(recorded, COMMANDS[name], "0.1" if name.endswith("0.1") else "0.2")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("recorded")
    extract(data)
    return data


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_prints_what_it_did(recorded: Path, name: str) -> None:
    assert answer(recorded, name) == (EXPECTED / f"{name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("handle", ["latest", "2", "forked"])
def test_a_run_is_named_by_latest_its_number_and_its_name(recorded: Path, handle: str) -> None:
    found = printed(recorded, f"games --run {handle} --split eval --csv")
    assert found == answer(recorded, "games-of-a-fork")
    assert f'"run_id": "{FORK}' in printed(recorded, f"log tail checkpoints --json -n 1 --run {handle}")
    assert "no sign of a collapse" in printed(recorded, f"collapse {handle}")


def test_a_checkpoint_is_named_by_its_place_from_the_end_and_as_the_best(recorded: Path) -> None:
    place = Place.at(recorded / "0.2")
    newest, before, best = (find_checkpoint(place, *split_name(f"1@{at}"))[0] for at in ("-1", "-2", "best"))
    assert (newest.update, before.update) == (6, 4)  # every second update is saved
    (won,) = us.sql(
        "SELECT policy_version FROM learning_curve WHERE split = 'eval' AND run_id = ? "
        "ORDER BY win_rate DESC, policy_version DESC LIMIT 1",
        [newest.parent_run_id],
        data=place.root,
    )
    assert best.update == won[0]
    with pytest.raises(RunError, match="has no checkpoint of update -9"):
        find_checkpoint(place, *split_name("latest@-9"))


def test_its_updates_are_trained_again(recorded: Path) -> None:
    found = printed(recorded, f"verify {RUN} --train --jobs 1")
    assert "6 of 6 updates trained again: metrics equal" in found
    assert found.endswith("exit 0\n"), "the tolerance depends on the machine"


def test_a_report_of_an_earlier_run_can_be_made(recorded: Path) -> None:
    assert printed(recorded, f"report {EARLIER} -o DATA/report.html", "0.1").endswith("exit 0\n")
    assert EARLIER in (recorded / "0.1" / "report.html").read_text(encoding="utf-8")


if __name__ == "__main__":
    EXPECTED.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        extract(Path(directory))
        for name in COMMANDS:
            (EXPECTED / f"{name}.txt").write_text(answer(Path(directory), name), encoding="utf-8")
