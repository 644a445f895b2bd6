"""The games that a report shows: which they are, and why."""

from pathlib import Path

import pytest

from tests.archive.history import made_up_run, stored
from unstable_stream.archive import ArchiveWriter, query
from unstable_stream.history.views.report.samples import pick_samples

_EVALUATED = """
    SELECT s.result FROM game_outcomes AS o JOIN seats AS s USING (game_id)
    WHERE o.game_id = ? AND s.model_uid = o.evaluated_uid
"""


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "archive.duckdb"
    with ArchiveWriter(path) as writer:
        writer.write(stored(made_up_run(updates=12)))
    return path


def _by_reason(archive: Path, limit: int = 5) -> dict[str, str]:
    samples = pick_samples(archive, "run-a", limit=limit)
    assert len(samples) <= limit
    return {reason: sample.transcript.game_id for sample in samples for reason in sample.reasons}


def test_each_choice_is_the_game_that_it_names(archive: Path) -> None:
    chosen = _by_reason(archive, limit=9)
    for reason, result in (("A win of", "win"), ("A loss of", "loss")):
        game = chosen[f"{reason} the last checkpoint"]
        assert query(archive, _EVALUATED, [game]).rows == [(result,)]
    ((longest,),) = query(archive, "SELECT max(num_turns) FROM game_outcomes").rows
    tokens = "SELECT game_id, sum(completion_tokens) FROM trajectories GROUP BY game_id"
    ((most,),) = query(
        archive,
        f"SELECT max(tokens) FROM ({tokens}) AS t(game_id, tokens) JOIN game_outcomes USING (game_id) "
        "WHERE num_turns = ?",
        [longest],
    ).rows
    game = chosen["The longest game"]
    assert query(archive, "SELECT num_turns FROM game_outcomes WHERE game_id = ?", [game]).rows == [
        (longest,)
    ]
    assert query(
        archive, "SELECT sum(completion_tokens) FROM trajectories WHERE game_id = ?", [game]
    ).rows == [(most,)]
    assert query(
        archive, "SELECT split, game_index FROM games WHERE game_id = ?", [chosen["The first game"]]
    ).rows == [("train", 0)]


def test_a_game_before_and_after_training_comes_first(archive: Path) -> None:
    query(archive, "UPDATE game_outcomes SET seed = 7 WHERE split = 'eval'", write=True)
    first, last, *_ = pick_samples(archive, "run-a", limit=5)
    assert "First checkpoint: the same game before training, lost" in first.reasons
    assert "Last checkpoint: the same game after training, won" in last.reasons
    assert query(archive, _EVALUATED, [first.transcript.game_id]).rows == [("loss",)]
    assert query(archive, _EVALUATED, [last.transcript.game_id]).rows == [("win",)]
    assert not any("before training" in reason for reason in _by_reason(archive, limit=1))
