"""The command line as a user meets it: help, clear errors, nothing heavy loaded for a question."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tests.command_line import run_command
from unstable_stream.ui.cli import app
from unstable_stream.ui.cli.commands import COMMANDS, summary

HEAVY = ("torch", "transformers", "ray", "textarena", "vllm", "duckdb", "peft")


def all_commands() -> dict[str, Any]:
    def walk(command: Any, path: str) -> dict[str, Any]:
        if not hasattr(command, "list_commands"):
            return {path: command}
        children = {name: command.get_command(None, name) for name in command.list_commands(None)}
        return {
            k: v for name, child in children.items() for k, v in walk(child, f"{path} {name}".strip()).items()
        }

    return walk(typer.main.get_command(app), "")


@pytest.mark.parametrize("name", sorted(all_commands()))
def test_every_command_shows_an_example_of_itself(name: str) -> None:
    result = CliRunner().invoke(app, [*name.split(), "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    assert f"unstable-stream {name.split()[0]}" in result.output


def test_the_list_of_commands_says_what_each_says_itself() -> None:
    root: Any = typer.main.get_command(app)
    for name in COMMANDS:
        own = " ".join(root.get_command(None, name).help.split())
        assert own.startswith(summary(name)), name


def test_the_list_of_commands_imports_none() -> None:
    program = (
        "import sys; sys.argv = ['unstable-stream', '--help']\n"
        "from unstable_stream.ui.cli import main\n"
        "try:\n    main()\nfinally:\n"
        "    print([name for name in sys.modules if name.startswith('unstable_stream.')])"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = result.stdout.splitlines()[-1]
    assert "'unstable_stream.ui.cli.commands'" in loaded
    assert "unstable_stream.api" not in loaded
    assert "unstable_stream.ui.cli.topics" not in loaded


def test_the_commands_of_the_readme_exist() -> None:
    readme = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")
    commands = all_commands()
    used = {line.split()[1] for line in readme.splitlines() if line.startswith("unstable-stream ")}
    assert used
    assert used <= {name.split()[0] for name in commands}


@pytest.mark.parametrize("statement", ["import unstable_stream.ui.cli", "import unstable_stream.events"])
def test_asking_for_help_loads_nothing_heavy(statement: str) -> None:
    program = f"{statement}; import sys; print([m for m in {HEAVY!r} if m in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["train"], "give a configuration file"),
        (["train", "nowhere.toml"], "cannot read nowhere.toml"),
        (["train", "--resume", "x"], "no event log at"),
        (["watch", "x"], "no event log at"),
        (["log", "tail", "runs"], "no event log at"),
        (["topics", "describe", "nope"], "no topic 'nope'; topics: checkpoints"),
        (["quickstart", "--set", "learner.steps=3"], "unknown key 'learner.steps'"),
        (["quickstart", "--model", "./nowhere"], "no such directory"),
        (["quickstart", "--data", "/proc/nowhere"], "cannot make the data directory"),
        (
            ["quickstart", "--set", "model_pool.sample_mode=lagged", "--set", "model_pool.max_active_lora=1"],
            "needs at least 2",
        ),
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


def test_topics_lists_all_and_shows_one(tmp_path: Path) -> None:
    listed = CliRunner().invoke(app, ["topics", "--data", str(tmp_path)], env={"COLUMNS": "200"})
    assert listed.exit_code == 0
    for name in ("trajectories", "game-outcomes", "steps", "dead-letters"):
        assert name in listed.output
    shown = CliRunner().invoke(
        app, ["topics", "describe", "steps", "--data", str(tmp_path)], env={"COLUMNS": "200"}
    )
    assert "prompt_token_ids" in shown.output


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


def test_a_light_installation_is_told_what_is_missing(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['ray'] = None; sys.argv = ['unstable-stream', 'quickstart']\n"
        "from unstable_stream.ui.cli import main; main()"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False
    )
    assert result.returncode == 1
    assert result.stderr.startswith("error: this command plays games or trains")
    assert "unstable_stream[train]" in result.stderr
