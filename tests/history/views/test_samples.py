"""The games that a report shows: which they are, and why."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.archive.history import made_up_run
from tests.places import archived
from unstable_stream.archive import query
from unstable_stream.history.views.report.reading import read_results
from unstable_stream.history.views.report.samples import pick_samples, shortened

_EVALUATED = """
    SELECT s.result FROM game_outcomes AS o JOIN seats AS s USING (game_id)
    WHERE o.game_id = ? AND s.model_uid = o.evaluated_uid
"""


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return archived(tmp_path, made_up_run(updates=12))


def _by_reason(archive: Path, limit: int = 5) -> dict[str, str]:
    results = [row for row in read_results(archive, "run-a") if not row["together"]]
    samples = pick_samples(archive, "run-a", limit=limit, results=results)
    assert len({sample.transcript.game_id for sample in samples}) == len(samples) <= limit
    return {reason: sample.transcript.game_id for sample in samples for reason in sample.reasons}


def test_each_choice_is_the_game_that_it_names(archive: Path) -> None:
    chosen = _by_reason(archive, limit=9)
    for reason, result in (("A win of", "win"), ("A loss of", "loss")):
        game = chosen[f"{reason} the last checkpoint against random"]
        assert query(archive, _EVALUATED, [game]).rows == [(result,)]
    first = "SELECT split, game_index FROM games WHERE game_id = ?"
    assert query(archive, first, [chosen["The first game"]]).rows == [("train", 0)]
    # Of the longest the one with most tokens.
    (longest_game,) = [
        game for reason, game in chosen.items() if re.fullmatch(r"The longest game: \d+ moves", reason)
    ]
    longest = """
        SELECT o.num_turns, sum(completion_tokens)
        FROM game_outcomes AS o JOIN trajectories USING (game_id) {} GROUP BY game_id, o.num_turns
        ORDER BY ALL DESC LIMIT 1
    """
    of_game = query(archive, longest.format("WHERE game_id = ?"), [longest_game]).rows
    assert of_game == query(archive, longest.format("")).rows


def test_a_game_before_and_after_training_comes_first(archive: Path) -> None:
    query(archive, "UPDATE game_outcomes SET seed = 7 WHERE split = 'eval'", write=True)
    first, last, *_ = pick_samples(archive, "run-a", limit=5)
    assert "First checkpoint: the same game before training, lost" in first.reasons
    assert "Last checkpoint: the same game after training, won" in last.reasons
    assert query(archive, _EVALUATED, [first.transcript.game_id]).rows == [("loss",)]
    assert query(archive, _EVALUATED, [last.transcript.game_id]).rows == [("win",)]
    assert not any("before training" in reason for reason in _by_reason(archive, limit=1))


def test_the_turning_point_is_the_largest_jump_against_one_opponent(archive: Path) -> None:
    """The made-up policy loses both evaluation games at update 0, and then wins one of two."""
    (told,) = [reason for reason in _by_reason(archive, limit=10) if reason.startswith("The turning point")]
    assert told == (
        "The turning point: from update 0 to 1 the win rate against random rose from 0.0 % to 50.0 %, more "
        "than between any other two evaluations"
    )
    game = _by_reason(archive, limit=10)[told]
    won = query(archive, _EVALUATED.replace("s.result", "s.result, s.policy_version"), [game]).rows
    assert won == [("win", 1)]


def test_the_least_probable_answer_is_named(archive: Path) -> None:
    unlikely = "SELECT trajectory_id, turn_index, game_id, game_turn FROM turns ORDER BY ALL LIMIT 1 OFFSET 7"
    ((trajectory, turn, game, move),) = query(archive, unlikely).rows
    query(
        archive,
        "UPDATE turns SET logprobs = [-9.25, -1.0] WHERE trajectory_id = $1 AND turn_index = $2",
        [trajectory, turn],
        write=True,
    )
    query(
        archive,
        "UPDATE game_outcomes SET least_likely_turn = $1 WHERE game_id = $2",
        [move, game],
        write=True,
    )
    said = f"The most surprising answer of the policy: at move {move}, with a log-probability of -10.2 nats"
    assert _by_reason(archive, limit=10)[said] == game


def test_the_same_games_are_chosen_each_time(archive: Path) -> None:
    assert list(_by_reason(archive, 10).items()) == list(_by_reason(archive, 10).items())
    assert list(_by_reason(archive, 3)) == list(_by_reason(archive, 10))[: len(_by_reason(archive, 3))]


def test_without_an_evaluation_there_is_a_story_of_the_training(archive: Path) -> None:
    for table in ("game_outcomes", "seats", "planned_seats", "game_starts"):
        query(archive, f"DELETE FROM {table} WHERE split = 'eval'", write=True)
    chosen = list(_by_reason(archive, limit=10))
    assert chosen[0] == "The first game"
    assert not [reason for reason in chosen if "last checkpoint" in reason or "turning point" in reason]


def test_a_shortened_game_keeps_its_ends(archive: Path) -> None:
    (sample,) = pick_samples(archive, "run-a", limit=1)
    sample = replace(sample, moves=[replace(sample.moves[0], game_turn=turn) for turn in range(7)])
    short = shortened(sample)
    assert [move.game_turn for move in short.moves] == [0, 1, 6]
    assert short.left_out_after == 1
    shorter = shortened(short)
    assert [move.game_turn for move in shorter.moves] == [0]
    assert shortened(shorter) == shorter
