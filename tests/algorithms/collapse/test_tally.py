"""Games counted into the metrics of an update."""

from typing import Any

from tests.builders import made
from unstable_stream.algorithms.collapse import GameTally
from unstable_stream.events import GameOutcome, GamePosition, SeatResult


def seat(number: int, uid: str, reward: float, **fields: Any) -> SeatResult:
    kind = "checkpoint" if uid.startswith("ckpt") else "scripted"
    named = {"seat": number, "model_uid": uid, "reward": reward, "kind": kind, "turns": 3}
    return made(SeatResult, **named | fields)


def outcome(*seats: SeatResult, **fields: Any) -> GameOutcome:
    return made(GameOutcome, run_id="run", env_id="Tak", seats=seats, **fields)


def test_mirror_fixed_and_evaluation_games() -> None:
    tally = GameTally()
    new, old = "ckpt-000002", "ckpt-000001"
    tally.add(
        outcome(
            seat(0, new, 1.0, trained=True, turns=4),
            seat(1, new, -1.0, trained=True, turns=3, invalid_moves=1),
            unparsed={0: 0, 1: 1},
            invalid_seat=1,
        )
    )
    tally.add(outcome(seat(0, "random-legal", 1.0, turns=9), seat(1, new, -1.0, trained=True, turns=2)))
    lost = seat(1, "random-legal", -1.0, turns=9)
    tally.add(outcome(seat(0, old, 1.0, turns=1), lost, evaluated_uid=old, invalid_seat=1))  # not ours
    tally.add(outcome(seat(0, new, 1.0, trained=True, turns=0), seat(1, old, -1.0, turns=9)))  # a past self
    tally.add(outcome(seat(0, "random-legal", 0.0), seat(1, "first-legal", 0.0)))  # nobody is ours
    assert tally.take() == {
        "finished_games": 4.0,
        "invalid_game_fraction": 0.25,
        "game_turns": 10.0,
        "legal_fraction": 0.9,
        "parsed_fraction": 6 / 7,  # only seats whose answers were judged
        "mirror_games": 1.0,
        "mirror_reward": 0.0,
        "fixed_games": 2.0,
        "fixed_win_rate": 0.5,
        "fixed_loss_rate": 0.5,
        "fixed_games/Tak/random-legal": 2.0,
        "fixed_wins/Tak/random-legal": 1.0,
    }
    assert tally.take() == {}


def test_a_partner_of_another_model_is_no_opponent() -> None:
    tally = GameTally("clues")
    clues, guesses = "ckpt-clues-000002", "ckpt-guesses-000002"
    ours = [seat(number, uid, 1.0, trained=True, team=0) for number, uid in enumerate((clues, guesses))]
    fixed = [seat(number, "random-legal", -1.0, team=1) for number in (2, 3)]
    tally.add(outcome(*ours, *fixed))
    met = tally.take()
    assert (met["fixed_games"], met["fixed_wins/Tak/random-legal"]) == (1.0, 1.0)
    theirs = [seat(number, uid, -1.0, trained=True, team=1) for number, uid in ((2, clues), (3, guesses))]
    tally.add(outcome(*ours, *theirs))
    alone = {"finished_games": 1.0, "invalid_game_fraction": 0.0, "game_turns": 6.0, "legal_fraction": 1.0}
    assert tally.take() == alone, "two models are no mirror"


def test_the_result_of_a_game_from_a_position_says_nothing_of_the_policy() -> None:
    tally = GameTally()
    new = "ckpt-000002"
    start = GamePosition(game_id="game", turn=2, seed=1, moves=2)
    mine = seat(0, new, -1.0, trained=True, turns=2)
    tally.add(outcome(mine, seat(1, "random-legal", 1.0), position=start))
    tally.add(outcome(mine, seat(1, new, 1.0, trained=True), position=start))
    assert tally.take() == {
        "finished_games": 2.0,
        "invalid_game_fraction": 0.0,
        "game_turns": 7.0,
        "legal_fraction": 1.0,
    }
