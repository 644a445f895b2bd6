"""``check-env`` as a user gives it."""

import json
from pathlib import Path

from tests.command_line import run_command
from tests.games.court import defects

_FILE = Path(defects.__file__).read_text(encoding="utf-8")


def test_a_failed_environment_is_told_kept_and_played_again(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(_FILE)
    done = run_command("check-env", "mine.py:OpenCards", "--games", "20", "--json", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    verdict = json.loads(done.stdout)
    (failed,) = [finding for finding in verdict["findings"] if finding["status"] == "failed"]
    assert (verdict["status"], failed["check"]) == ("failed", "hidden stays hidden")
    assert len(list((tmp_path / "unstable-data" / "verdicts").rglob("2-*.json"))) == 1
    example = failed["example"]
    game = json.dumps({**example, "moves": [*example.get("moves", []), "[bet]", "[call]"]})
    played = run_command("check-env", "mine.py:OpenCards", "--play", game, cwd=tmp_path)
    assert "The opponent's card:" in played.stdout
    assert "-- over: rewards" in played.stdout


def test_a_game_that_is_none_is_refused(tmp_path: Path) -> None:
    done = run_command("check-env", "openspiel:nim", "--play", "[0]", cwd=tmp_path)
    assert done.returncode == 1
    assert "is no game" in done.stderr


def test_an_unknown_environment_is_told_in_one_line(tmp_path: Path) -> None:
    done = run_command("check-env", "TicTacTo-v0-train", cwd=tmp_path)
    assert done.returncode == 1
    assert "did you mean TicTacToe-v0-train" in done.stderr
    assert not (tmp_path / "unstable-data").exists()


def test_a_directory_that_cannot_be_written_is_told_before_anything_is_played(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run_command("check-env", "TicTacToe-v0-train", "--data", "file/data", cwd=tmp_path)
    assert done.returncode == 1
    assert "cannot write file/data" in done.stderr
    assert "games" not in done.stderr


def test_texts_are_read_as_a_model_and_a_template_do(tmp_path: Path) -> None:
    def texts(env: str, template: str) -> tuple[str, str]:
        how = ("--model", "tiny-player", "--template", template, "--games", "4", "--seconds", "2", "--json")
        verdict = json.loads(run_command("check-env", env, *how, cwd=tmp_path).stdout)
        (found,) = [each for each in verdict["findings"] if each["check"] == "texts"]
        return found["status"], found["says"]

    status, says = texts("disguise:board-1-8:TicTacToe-v0-train", "tictactoe-board")
    assert (status, says.rpartition(", and ")[2]) == (
        "passed",
        "the longest prompt for tiny-player, template tictactoe-board 12 tokens",
    )
    status, says = texts("TicTacToe-v0-train", "simpletak-board")
    assert (status, "cannot read a text: no 4x4 SimpleTak board" in says) == ("failed", True)
