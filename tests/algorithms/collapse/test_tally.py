"""Games counted into the metrics of an update."""

import msgspec

from tests.builders import made
from unstable_stream.algorithms.collapse import GameTally
from unstable_stream.events import GameOutcome, SeatResult, game_id


def seat(
    number: int, uid: str, reward: float, *, trained: bool = False, turns: int = 3, invalid_moves: int = 0
) -> SeatResult:
    return SeatResult(
        seat=number,
        model_uid=uid,
        kind="checkpoint" if uid.startswith("ckpt") else "scripted",
        reward=reward,
        rank=int(reward < 0),
        trained=trained,
        turns=turns,
        invalid_moves=invalid_moves,
    )


def outcome(
    *seats: SeatResult,
    evaluated: str | None = None,
    unparsed: dict[int, int] | None = None,
    invalid_seat: int | None = None,
) -> GameOutcome:
    game = game_id("run", "train", 0)
    return made(
        GameOutcome,
        run_id="run",
        game_id=game,
        split="eval" if evaluated else "train",
        env_id="Tak",
        seed=1,
        seats=seats,
        reason="win",
        evaluated_uid=evaluated,
        unparsed=unparsed or {},
        invalid_seat=invalid_seat,
    )


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
    tally.add(outcome(seat(0, old, 1.0, turns=1), lost, evaluated=old, invalid_seat=1))  # not ours
    tally.add(outcome(seat(0, new, 1.0, trained=True, turns=0), seat(1, old, -1.0, turns=9)))  # a past self
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
    def of_team(team: int, played: SeatResult) -> SeatResult:
        return msgspec.structs.replace(played, team=team)

    tally = GameTally("clues")
    clues, guesses = "ckpt-clues-000002", "ckpt-guesses-000002"
    ours = (of_team(0, seat(0, clues, 1.0, trained=True)), of_team(0, seat(1, guesses, 1.0, trained=True)))
    fixed = (of_team(1, seat(2, "random-legal", -1.0)), of_team(1, seat(3, "random-legal", -1.0)))
    tally.add(outcome(*ours, *fixed))
    met = tally.take()
    assert (met["fixed_games"], met["fixed_wins/Tak/random-legal"]) == (1.0, 1.0)
    theirs = (
        of_team(1, seat(2, clues, -1.0, trained=True)),
        of_team(1, seat(3, guesses, -1.0, trained=True)),
    )
    tally.add(outcome(*ours, *theirs))
    alone = {"finished_games": 1.0, "invalid_game_fraction": 0.0, "game_turns": 6.0, "legal_fraction": 1.0}
    assert tally.take() == alone, "two models are no mirror"


def test_games_between_fixed_opponents_are_not_ours() -> None:
    tally = GameTally()
    tally.add(outcome(seat(0, "random-legal", 0.0, turns=3), seat(1, "first-legal", 0.0, turns=3)))
    assert tally.take() == {}
