"""The games that a report shows: which they are, and why."""

from pathlib import Path

import pytest

from tests.archive.history import made_up_run
from tests.places import archived
from unstable_stream.archive import query
from unstable_stream.history.views.report.samples import pick_samples

_EVALUATED = """
    SELECT s.result FROM game_outcomes AS o JOIN seats AS s USING (game_id)
    WHERE o.game_id = ? AND s.model_uid = o.evaluated_uid
"""


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return archived(tmp_path, made_up_run(updates=12))


def _by_reason(archive: Path, limit: int = 5) -> dict[str, str]:
    samples = pick_samples(archive, "run-a", limit=limit)
    assert len(samples) <= limit
    return {reason: sample.transcript.game_id for sample in samples for reason in sample.reasons}


def test_each_choice_is_the_game_that_it_names(archive: Path) -> None:
    chosen = _by_reason(archive, limit=9)
    for reason, result in (("A win of", "win"), ("A loss of", "loss")):
        game = chosen[f"{reason} the last checkpoint"]
        assert query(archive, _EVALUATED, [game]).rows == [(result,)]
    first = "SELECT split, game_index FROM games WHERE game_id = ?"
    assert query(archive, first, [chosen["The first game"]]).rows == [("train", 0)]
    # Of the longest the one with most tokens.
    longest = """
        SELECT o.num_turns, sum(completion_tokens)
        FROM game_outcomes AS o JOIN trajectories USING (game_id) {} GROUP BY game_id, o.num_turns
        ORDER BY ALL DESC LIMIT 1
    """
    of_game = query(archive, longest.format("WHERE game_id = ?"), [chosen["The longest game"]]).rows
    assert of_game == query(archive, longest.format("")).rows


def test_a_game_before_and_after_training_comes_first(archive: Path) -> None:
    query(archive, "UPDATE game_outcomes SET seed = 7 WHERE split = 'eval'", write=True)
    first, last, *_ = pick_samples(archive, "run-a", limit=5)
    assert "First checkpoint: the same game before training, lost" in first.reasons
    assert "Last checkpoint: the same game after training, won" in last.reasons
    assert query(archive, _EVALUATED, [first.transcript.game_id]).rows == [("loss",)]
    assert query(archive, _EVALUATED, [last.transcript.game_id]).rows == [("win",)]
    assert not any("before training" in reason for reason in _by_reason(archive, limit=1))
