"""The command line as a user meets it: help, clear errors, nothing heavy loaded for a question."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tests.command_line import PROGRAM, run_command
from unstable_stream.ui.cli import app
from unstable_stream.ui.cli.commands import COMMANDS, summary

HEAVY = ("torch", "transformers", "ray", "textarena", "vllm", "duckdb", "peft")


def test_the_list_of_commands_says_what_each_says_itself_and_each_has_an_example() -> None:
    root: Any = typer.main.get_command(app)
    for name in (name for names in COMMANDS.values() for name in names):
        own = root.get_command(None, name)
        assert " ".join(own.help.split()).startswith(summary(name)), name
        for command in getattr(own, "commands", {name: own}).values():
            assert f"unstable-stream {name}" in command.help, command.name


@pytest.mark.parametrize(
    ("work", "needed"),
    [
        ("from unstable_stream.ui.cli import main; main()", "unstable_stream.ui.cli.commands"),
        ("import unstable_stream.events", "unstable_stream.events"),
    ],
)
def test_the_list_of_commands_and_the_events_load_no_commands_and_nothing_heavy(
    work: str, needed: str
) -> None:
    program = f"import sys\nsys.argv = ['x', '--help']\ntry:\n    {work}\nfinally:\n    print(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = set(result.stdout.splitlines()[-1].split())
    assert needed in loaded
    assert loaded.isdisjoint({"unstable_stream.api", "unstable_stream.ui.cli.log", *HEAVY})


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["train"], "give a configuration file"),
        (["train", "nowhere.toml"], "cannot read nowhere.toml"),
        (["train", "--resume", "x"], "no event log at"),
        (["watch", "x"], "no event log at"),
        (["log", "tail", "runs"], "no event log at"),
        (["topics", "describe", "nope"], "no topic 'nope'; topics: checkpoints"),
        (["topics", "describe", "game"], "no topic 'game'; did you mean games? topics: checkpoints"),
        (["quickstart", "--set", "algorithm=Reinforc"], "'Reinforc'; did you mean reinforce? known: "),
        (["quickstart", "--set", "engine=vlm"], "unknown engine 'vlm'; did you mean vllm? known: "),
        (["quickstart", "--set", "train_envs.0.template=chatt"], "template 'chatt'; did you mean chat? "),
        (["quickstart", "--set", 'evaluation.opponents=["randomlegal"]'], "did you mean random-legal? expec"),
        (["quickstart", "--set", 'rewards.step=["Discout"]'], "did you mean Discount? known: "),
        (["quickstart", "--set", "model_pool.sample_mode=miror"], "did you mean mirror? known: "),
        (
            ["eval", "tiny-player", "--against", "perfect", "--env", "TicTacTo-v0"],
            "did you mean TicTacToe-v0",
        ),
        (["quickstart", "--set", "learner.steps=3"], "--set learner.steps: unknown key 'learner.steps'"),
        (["quickstart", "--set", "learner.iteration=3"], "did you mean iterations?; known here"),
        (["quickstart", "--set", "learner.iterations=x"], "error: --set learner.iterations: learner.iter"),
        (["quickstart", "--set", "train_envs=Nim-v0"], "train_envs.0.env_id=Nim-v0 names the first"),
        (["quickstart", "--model", "./nowhere"], "no such directory"),
        (["quickstart", "--data", "/proc/nowhere"], "cannot make the data directory"),
        (["quickstart", "--set", 'train_envs=[{env_id="TicTacTow-v0-train"}]'], "TicTacToe-v0-train"),
    ],
)
def test_a_mistake_is_one_line_on_stderr(arguments: list[str], says: str, tmp_path: Path) -> None:
    result = run_command(*arguments, cwd=tmp_path)
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert says in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "unstable-data").exists()


def test_the_quickstart_configuration_can_be_printed_and_used(tmp_path: Path) -> None:
    printed = CliRunner().invoke(app, ["quickstart", "--print-config"])
    path = tmp_path / "my.toml"
    path.write_text(printed.output)
    checked = run_command("train", str(path), "--dry-run", "--set", "learner.iterations=3", cwd=tmp_path)
    assert checked.returncode == 0, checked.stderr
    assert '"iterations": 3' in checked.stdout
    planned = run_command("plan", str(path), cwd=tmp_path)
    places = [line.split()[:4] for line in planned.stdout.splitlines()]
    assert places[1][0] == "learner"
    assert [line.split()[:4] for line in checked.stderr.splitlines()][: len(places)] == places
    assert not (tmp_path / "unstable-data").exists()
    fetched_later = run_command("train", str(path), "--dry-run", "--set", "model=some/model-8B", cwd=tmp_path)
    assert fetched_later.returncode == 0, fetched_later.stderr
    assert "some/model-8B is not here: no memory is foretold" in fetched_later.stderr
    assert "learner and engine on the CPU" in fetched_later.stderr


@pytest.mark.parametrize(
    ("missing", "arguments", "says", "extra"),
    [
        ("ray", ["quickstart"], "this command plays games or trains", "train"),
        ("aiokafka", ["runs", "--log", "kafka://127.0.0.1:1"], "a log on Kafka needs aiokafka", "kafka"),
    ],
)
def test_a_light_installation_is_told_what_is_missing(
    missing: str, arguments: list[str], says: str, extra: str, tmp_path: Path
) -> None:
    program = f"import sys; sys.modules[{missing!r}] = None; {PROGRAM}"
    command = [sys.executable, "-c", program, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert result.returncode == 1
    assert result.stderr.startswith(f"error: {says}")
    assert f"pip install 'unstable_stream[{extra}]'" in result.stderr
    assert result.stderr.count("\n") == 1
