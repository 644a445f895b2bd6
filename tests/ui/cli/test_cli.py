"""The command line as a user meets it: help, clear errors, nothing heavy loaded for a question."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import proxy_bypass

import pytest
import typer
from typer.testing import CliRunner

from tests.archive.history import made_up_run
from tests.command_line import PROGRAM, run_command
from tests.places import append
from tests.processes import completed, python
from unstable_stream.ui import cli
from unstable_stream.ui.cli import app
from unstable_stream.ui.cli.commands import COMMANDS, summary

HEAVY = ("torch", "transformers", "ray", "textarena", "vllm", "duckdb", "peft")


def test_the_list_of_commands_says_what_each_says_itself_and_each_has_an_example() -> None:
    for name, command in _commands():
        if " " not in name:
            assert " ".join(command.help.split()).startswith(summary(name)), name
        if not getattr(command, "no_args_is_help", False):
            assert f"Example: unstable-stream {name}" in command.help, name


def _commands() -> Iterator[tuple[str, Any]]:
    root: Any = typer.main.get_command(app)
    for name in (name for names in COMMANDS.values() for name in names):
        own = root.get_command(None, name)
        yield name, own
        yield from ((f"{name} {part}", each) for part, each in getattr(own, "commands", {}).items())


def test_an_option_has_one_name_one_letter_and_one_kind_in_all_commands() -> None:
    forms: dict[str, set[tuple[tuple[str, ...], bool]]] = {}
    letters: dict[str, set[str]] = {}
    for _, command in _commands():
        for option in (each for each in command.params if each.param_type_name == "option"):
            name, *short = option.opts
            forms.setdefault(name, set()).add((tuple(short), bool(option.is_flag)))
            for letter in short:
                letters.setdefault(letter, set()).add(name)
    # How many to play, or whether again; which ones, or what there is; to print it, or a file.
    kinds = {"--games": 2, "--tables": 2, "--csv": 2}
    assert [name for name, found in forms.items() if len(found) > kinds.get(name, 1)] == []
    shared = {letter: names for letter, names in letters.items() if len(names) > 1}
    assert shared == {"-f": {"--file", "--follow"}}  # of a query in a file, and of what goes on
    assert {"--out", "--force", "--json", "--csv", "--limit", "--run", "--dry-run"} <= forms.keys()
    other_words = "--output --directory --replace --overwrite --yes --lines --max --count --format --run-id"
    assert forms.keys().isdisjoint(other_words.split())
    assert forms["--out"] == {(("-o",), False)}
    assert forms["--limit"] == {(("-n",), False)}


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["rm", "run-"], ["run-a"]),
        (["games", "--run", ""], ["run-a"]),
        (["why", "x"], []),
        (["train", "--set", "learner.learning_r"], ["learner.learning_rate="]),
    ],
)
def test_a_shell_completes_runs_and_keys(words: list[str], found: list[str], tmp_path: Path) -> None:
    append(tmp_path, made_up_run(updates=1))
    line = {"COMP_WORDS": " ".join(["unstable-stream", *words]), "COMP_CWORD": str(len(words))}
    shell = {"_UNSTABLE_STREAM_COMPLETE": "complete_bash", "UNSTABLE_STREAM_DATA": str(tmp_path), **line}
    done = CliRunner().invoke(app, [], env=shell, prog_name="unstable-stream")
    assert done.stdout.split() == found, done.output


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
    loaded = set(python(program).stdout.splitlines()[-1].split())
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
        (["topics", "describe", "game"], "no topic 'game'; did you mean games? topics"),
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


def test_a_command_asks_no_proxy_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "lab.org")
    cli._reach_this_machine_directly()
    assert proxy_bypass("127.0.0.1:9000")
    assert proxy_bypass("lab.org")


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
    result = completed(sys.executable, "-c", program, *arguments, cwd=tmp_path)
    assert result.returncode == 1
    assert result.stderr.startswith(f"error: {says}")
    assert f"pip install 'unstable_stream[{extra}]'" in result.stderr
    assert result.stderr.count("\n") == 1
