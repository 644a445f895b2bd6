"""The training of a checkpoint and its results: the archive's answers for a model card."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unstable_stream.algorithms.intervals import wilson_interval
from unstable_stream.archive import query
from unstable_stream.errors import RunError
from unstable_stream.events import Checkpoint, is_checkpoint_uid
from unstable_stream.log.stores.archive_address import ArchiveAddress

_LINE = """
    line AS (
        SELECT ancestor_run_id AS run_id,
            CASE distance WHEN 0 THEN $update ELSE coalesce(at_update, 0) END AS until
        FROM run_lineage WHERE run_id = $run
    ),
    trained AS (
        SELECT p.* FROM update_provenance AS p JOIN line USING (run_id)
        WHERE p.fate = 'trained' AND p.update <= line.until AND p.model IS NOT DISTINCT FROM $model
    )
"""
"""The steps behind a checkpoint: those of its run, and of the runs that it was forked from."""

_ENVIRONMENTS = f"""
    WITH {_LINE} SELECT env_id, count(DISTINCT game_id), count(*), sum(completion_tokens)
    FROM trained GROUP BY env_id ORDER BY env_id
"""

_OPPONENTS = f"WITH {_LINE} SELECT DISTINCT unnest(opponents) AS name FROM trained ORDER BY name"

_RESULTS = """
    SELECT w.run_id, w.env_id, w.opponent, sum(w.games)::INT, sum(w.wins)::INT, sum(w.draws)::INT,
        sum(w.losses)::INT, sum(w.wins * w.independent_games / w.games), sum(w.independent_games)::INT
    FROM win_rates AS w
    JOIN (SELECT DISTINCT run_id, model_uid FROM checkpoints WHERE run_id = $run OR sha256 = $sha256) AS c
        USING (run_id, model_uid)
    WHERE w.split = 'eval' AND w.model_uid = $model_uid
    GROUP BY ALL ORDER BY ALL
"""
"""Evaluations are runs of their own too, with the same weights under the same name."""

_BEFORE = """
    SELECT env_id, opponent, sum(games)::INT, sum(wins)::INT,
        sum(wins * independent_games / games), sum(independent_games)::INT
    FROM win_rates
    WHERE run_id = $run AND split = 'eval' AND policy_version = 0
        AND trained_model(model_uid) IS NOT DISTINCT FROM $model
    GROUP BY ALL
"""

_SETTINGS = """
    SELECT
        run_id, config ->> '$.sampling.temperature', config ->> '$.evaluation.votes',
        config ->> '$.evaluation.best_of'
    FROM runs
    WHERE list_contains($runs, run_id) ORDER BY run_id
"""


@dataclass(frozen=True, slots=True)
class Result:
    """A checkpoint's evaluation games against one opponent in one environment, in all seats."""

    run_id: str
    """The run in which they were played."""
    env_id: str
    opponent: str
    """The other seats' players; empty if there are none."""
    met_in_training: bool
    games: int
    wins: int
    draws: int
    losses: int
    games_before: int
    """Those of the initial policy in the same run; 0: it was not evaluated there."""
    wins_before: int
    interval: tuple[float, float]
    """Wilson's 95 % interval of the share won; games that repeat others count once."""
    interval_before: tuple[float, float]
    """The same of the initial policy."""


@dataclass(frozen=True, slots=True)
class Played:
    """The steps of one environment that a checkpoint was trained on."""

    env_id: str
    games: int
    steps: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class TrainedOn:
    """A checkpoint's training and results, as far as they are archived."""

    environments: tuple[Played, ...]
    opponents: tuple[str, ...]
    """All that were met in games that were trained on; checkpoints of the run itself are one, ``""``."""
    results: tuple[Result, ...]
    settings: Mapping[str, tuple[str | None, str | None, str | None]]
    """Temperature, votes and best-of by run of :attr:`results`; ``None``: not archived."""


def read_training(archive: ArchiveAddress, run_id: str, checkpoint: Checkpoint) -> TrainedOn:
    """Return what the archive knows of a checkpoint of a run.

    Raises:
        ArchiveError: there is no archive.
        RunError: it does not have this checkpoint yet.
    """
    chosen = {"run": run_id, "model_uid": checkpoint.model_uid}
    known = "SELECT 1 FROM checkpoints WHERE run_id = $run AND model_uid = $model_uid"
    if not query(archive, known, chosen).rows:
        raise RunError(
            f"the archive {archive} does not have {checkpoint.model_uid} of run {run_id} yet, and the model "
            "card is made from it: bring it up to date with 'unstable-stream archive'"
        )
    of_model = {"run": run_id, "model": checkpoint.model}
    until = {**of_model, "update": checkpoint.iteration}
    opponents = {_name(row[0]) for row in query(archive, _OPPONENTS, until).rows}
    before = {
        (env_id, opponent): tuple(counts)
        for env_id, opponent, *counts in query(archive, _BEFORE, of_model).rows
    }
    rows = list(query(archive, _RESULTS, {**chosen, "sha256": checkpoint.sha256}).rows)
    rows.sort(key=lambda row: row[0] != run_id)  # the run's own come first
    results = tuple(_result(row, run_id, opponents, before) for row in rows)
    runs = sorted({result.run_id for result in results})
    settings = query(archive, _SETTINGS, {"runs": runs}).rows if runs else []
    return TrainedOn(
        tuple(Played(*row) for row in query(archive, _ENVIRONMENTS, until).rows),
        tuple(sorted(opponents)),
        results,
        {run: (temperature, votes, best_of) for run, temperature, votes, best_of in settings},
    )


def _result(
    row: tuple[Any, ...],  # of _RESULTS
    run_id: str,
    met: set[str],
    before: Mapping[tuple[str, str | None], tuple[Any, ...]],  # of _BEFORE
) -> Result:
    played_in, env_id, opponent, *counts, wins_once, games_once = row
    # The initial policy of an evaluation, which is a run of its own, was not evaluated in it.
    none = (0, 0, 0, 0)
    *first, first_wins, first_games = before.get((env_id, opponent), none) if played_in == run_id else none
    names = [] if opponent is None else opponent.split(", ")
    known = bool(names) and all(_name(name) in met for name in names)
    once = ((wins_once, games_once), (first_wins, first_games))
    rest = [*counts, *first, *(wilson_interval(*each) for each in once)]
    return Result(played_in, env_id, opponent or "", known, *rest)


def _name(model_uid: str) -> str:
    return "" if is_checkpoint_uid(model_uid) else model_uid
