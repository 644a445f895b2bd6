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

from unstable_stream.ui.cli import app

pytestmark = pytest.mark.longer

RECORDING = Path(__file__).with_name("run-of-0.2.tar.gz")
"""Two runs on TicTacToe and SimpleTak: one was killed and resumed, one is its fork."""
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
}


def extract(data: Path) -> None:
    """Put the recording into a data directory and archive it."""
    with tarfile.open(RECORDING) as bundle:
        bundle.extractall(data, filter="data")
    (data / "rewards.toml").write_text('[rewards]\nsampling = ["NormalizeRewards"]\n', encoding="utf-8")
    assert CliRunner().invoke(app, ["archive", "--data", str(data)]).exit_code == 0


def printed(data: Path, command: str) -> str:
    """Return what a command prints about the recording, without what differs between times and machines."""
    words = [word.replace("DATA", str(data)) for word in shlex.split(command)]
    result = CliRunner().invoke(app, [*words, "--data", str(data)], terminal_width=200)
    text = re.sub(r"[0-9.]+ m?s\b", "N s", result.output.replace(str(data), "DATA"))
    text = re.sub(r"-?\d+\.\d+(e-?\d+)?", lambda number: str(round(float(number[0]), 9) + 0.0), text)
    return f"{text}exit {result.exit_code}\n"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("recorded")
    extract(data)
    return data


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_prints_what_it_did(recorded: Path, name: str) -> None:
    assert printed(recorded, COMMANDS[name]) == (EXPECTED / f"{name}.txt").read_text(encoding="utf-8")


def test_its_updates_are_trained_again(recorded: Path) -> None:
    found = printed(recorded, f"verify {RUN} --train --jobs 1")
    assert "6 of 6 updates trained again: metrics equal" in found
    assert found.endswith("exit 0\n"), "the tolerance depends on the machine"


if __name__ == "__main__":
    EXPECTED.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        extract(Path(directory))
        for name, command in COMMANDS.items():
            (EXPECTED / f"{name}.txt").write_text(printed(Path(directory), command), encoding="utf-8")
