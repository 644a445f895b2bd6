"""The first configuration for a game: it can be trained with, and nothing is replaced unasked."""

from pathlib import Path

import pytest

import unstable_stream as us
from tests.command_line import run_command
from unstable_stream.api.starting import examples
from unstable_stream.runs.config import parse_config, read_toml


@pytest.mark.parametrize(
    ("game", "template", "met"),
    [
        ("TicTacToe-v0-train", "tictactoe-board", ["random-legal", "first-legal"]),
        ("openspiel:kuhn_poker", "kuhn-board", ["random-legal", "first-legal"]),
        ("LiarsDice-v0-train", "qwen3-zs", ["random-legal"]),
    ],
)
def test_a_configuration_for_a_game_can_be_trained_with(
    game: str, template: str, met: list[str], tmp_path: Path
) -> None:
    done = run_command("init", game, "-o", "my.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "my.toml").read_text(encoding="utf-8")
    assert text.startswith(f"# {game}: ")
    assert "# unstable-stream train my.toml" in text
    config = parse_config(read_toml(tmp_path / "my.toml"))
    (env,) = config.train_envs
    assert (env.env_id, env.num_players, env.template) == (game, 2, template)
    assert [each.name for each in config.evaluation.opponents] == met
    if config.model == "tiny-player":
        us.load(tmp_path / "my.toml", data=tmp_path)
    again = run_command("init", game, "-o", "my.toml", cwd=tmp_path)
    assert again.returncode == 1
    assert "my.toml is there: replace it with --force" in again.stderr
    assert run_command("init", game, "-o", "my.toml", "--force", cwd=tmp_path).returncode == 0


def test_an_example_is_copied_and_an_unknown_game_is_told(tmp_path: Path) -> None:
    assert run_command("init", "simpletak", cwd=tmp_path).returncode == 0
    copied = (tmp_path / "simpletak.toml").read_text(encoding="utf-8")
    example = examples()["simpletak"].read_text(encoding="utf-8")
    assert copied == example.replace("examples/simpletak.toml", "simpletak.toml")
    unknown = run_command("init", "TicTacTo-v0-train", cwd=tmp_path)
    assert (
        "no environment and no example 'TicTacTo-v0-train'; did you mean TicTacToe-v0-train" in unknown.stderr
    )
