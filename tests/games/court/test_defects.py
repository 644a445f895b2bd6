"""Each planted defect is found by the check that should find it; sound environments have no finding."""

from pathlib import Path

import pytest

from tests.games.court import defects
from unstable_stream.games.court import judge as judging
from unstable_stream.games.court import playing
from unstable_stream.games.court.judge import judge
from unstable_stream.games.court.trial import Reader
from unstable_stream.games.court.verdict import Verdict
from unstable_stream.services.launch.environment_trial import Task, try_environment

_FILE = Path(defects.__file__)
_SOUND = [
    "kuhn_poker",
    "leduc_poker",
    "tic_tac_toe",
    "liars_dice",
    "nim",
    "hex(board_size=3)",
    "gin_rummy",
    "banqi",
]


def _findings(verdict: Verdict) -> list[str]:
    return [finding.check for finding in (*verdict.of("failed"), *verdict.of("warned"))]


def test_more_than_thirty_defects_are_planted() -> None:
    assert len(defects.ALL) > 30


@pytest.mark.parametrize("env", [defects.Cards, defects.Piles])
def test_a_sound_environment_has_no_finding(env: type[defects.Cards]) -> None:
    verdict = try_environment(Task(f"{_FILE}:{env.__name__}", 2))
    assert verdict.status == "passed", verdict.page()


@pytest.mark.parametrize("env", defects.ALL, ids=lambda env: env.__name__)
def test_a_planted_defect_is_found(env: type[defects.Cards], monkeypatch: pytest.MonkeyPatch) -> None:
    if env is defects.NeverReturns:
        monkeypatch.setattr(playing, "LONGEST_CALL_S", 0.3)
    monkeypatch.setattr(playing, "MOST_MOVES", 60)
    name = f"{_FILE}:{env.__name__}"
    alone = env.FOUND_BY != "another process"
    verdict = judge(name, 2, games=30, seconds=3.0) if alone else try_environment(Task(name, 2))
    assert env.FOUND_BY in _findings(verdict), verdict.page()


def test_a_text_that_cannot_be_read_fails_whatever_else_is_to_be_said_of_texts() -> None:
    def unread(text: str) -> str:
        raise ValueError("no board")

    reader = Reader("a model", None, prompt=unread, tokens=len, spells_control=lambda text: True)
    verdict = judge(f"{_FILE}:{defects.MarksOfChat.__name__}", 2, games=4, seconds=1.0, reader=reader)
    (found,) = [each for each in verdict.findings if each.check == "texts"]
    assert (found.status, found.says) == ("failed", "a model cannot read a text: no board")


@pytest.mark.parametrize("game", _SOUND)
def test_a_game_of_openspiel_does_not_fail(game: str) -> None:
    pytest.importorskip("pyspiel")
    verdict = judge(f"openspiel:{game}", 2, seconds=3.0)
    assert not verdict.of("failed"), verdict.page()


@pytest.mark.parametrize(
    ("env_id", "players", "check", "says"),
    [
        ("KuhnPoker-v0-train", 2, "bets move chips", "[bet]' moves no chip"),
        ("Bandit-v0-train", 1, "winners", "incorrect button"),
        ("KuhnPoker-v0-train", 2, "reset begins anew", "leaves behind"),
    ],
)
def test_a_defect_of_textarena_is_shown_by_a_game(env_id: str, players: int, check: str, says: str) -> None:
    verdict = judge(env_id, players, seconds=5.0)
    (finding,) = [each for each in verdict.findings if each.check == check]
    assert says in finding.says
    assert finding.example is not None
    shown = playing.TrialGame(env_id, players, finding.example.seed, moves=finding.example.moves)
    assert not shown.play().failure


def test_textarena_games_that_are_sound_pass() -> None:
    for env_id in ("TicTacToe-v0-train", "Nim-v0-train", "LiarsDice-v0-train", "Snake-v0-train"):
        verdict = judge(env_id, 2, seconds=3.0)
        assert verdict.status == "passed", verdict.page()


def test_long_texts_are_kept_without_what_was_told_before() -> None:
    def play(kept: int) -> playing.Play:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(playing, "_LONG_TEXT", kept)
            return playing.TrialGame("Nim-v0-train", 2, 7, mover=playing.random_legal("Nim-v0-train")).play()

    whole, shared = play(10**9), play(0)
    assert [moment.text for moment in shared.moments] == [moment.text for moment in whole.moments]
    assert all(moment.shown == moment.text for moment in whole.moments)


def test_games_that_take_long_leave_checks_out_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "_MOST_TIMES", 0.0)
    verdict = judge("openspiel:nim", 2, games=4, seconds=2.0)
    (late,) = verdict.of("warned")
    assert (late.check, "copies, " in late.says) == ("time", True)
    assert {"ends", "rewards", "texts"} <= {finding.check for finding in verdict.of("passed")}
