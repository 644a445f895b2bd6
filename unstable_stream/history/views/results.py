"""Games that checkpoints won and lost, opponent by opponent, and the opponent that tells most of the latest.

No number mixes opponents: the mean over one that is always beaten and one that never is says nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from unstable_stream.archive import query
from unstable_stream.log.stores.archive_address import ArchiveAddress
from unstable_stream.runs.run_view import Matchup

# Names are taken apart only where there are several.
MET: Final = """
    CASE WHEN contains(s.opponent, ', ')
        THEN array_to_string(list_sort(list_distinct(string_split(s.opponent, ', '))), ', ')
        ELSE s.opponent
    END
"""
# The checkpoint under evaluation; not games of a model against itself, which are won as often as they are
# lost: as in the view ``learning_curve``. A join with all outcomes takes most of the time, so with few.
_EVALUATED: Final = f"""
    SELECT s.*, {MET} AS met, o.reason IS NOT DISTINCT FROM 'truncated' AS cut
    FROM seats AS s JOIN (
        SELECT game_id, evaluated_uid, reason FROM game_outcomes WHERE split = 'eval' AND {{condition}}
    ) AS o ON o.game_id = s.game_id AND o.evaluated_uid = s.model_uid
    WHERE s.split = 'eval' AND s.kind = 'checkpoint' AND met IS DISTINCT FROM s.model_uid AND s.{{condition}}
"""
EVALUATED_OF_RUN: Final = _EVALUATED.format(condition="run_id = $run")
"""The judged seats of evaluation games of one run."""
# Each policy's results by opponent, and those of all opponents together: one reading for both. Games in the
# same seats that are all one and the same count once in intervals, as in the view ``win_rates``.
RESULTS: Final = """
    SELECT run_id, split, env_id, model, version, opponent, grouping(opponent) = 1 AS together,
        sum(games)::BIGINT AS games, sum(wins)::BIGINT AS wins, sum(draws)::BIGINT AS draws,
        round(sum(games / times))::BIGINT AS independent_games,
        sum(wins) / sum(games) AS win_rate,
        wilson_low(sum(wins / times), sum(games / times)) AS low,
        wilson_high(sum(wins / times), sum(games / times)) AS high,
        sum(reward) / sum(seats) AS reward, sum(turns) / sum(seats) AS turns,
        sum(invalid)::BIGINT AS invalid, sum(invalid) / sum(games) AS invalid_rate,
        wilson_low(sum(invalid / times), sum(games / times)) AS invalid_low,
        wilson_high(sum(invalid / times), sum(games / times)) AS invalid_high,
        sum(cut) / sum(games) AS truncated_rate
    FROM (
        SELECT run_id, split, env_id, trained_model(model_uid) AS model, policy_version AS version,
            met AS opponent, count(*) AS seats, count(*) FILTER (counts IS NOT FALSE) AS games,
            count(*) FILTER (result = 'win' AND counts IS NOT FALSE) AS wins,
            count(*) FILTER (result = 'draw' AND counts IS NOT FALSE) AS draws,
            sum(judged.reward) AS reward, sum(judged.turns) AS turns,
            count(*) FILTER (ended_invalid) AS invalid,
            count(*) FILTER (judged.cut AND counts IS NOT FALSE) AS cut, repeats(game_digest) AS times
        FROM judged GROUP BY run_id, split, env_id, model_uid, policy_version, met, seat
    )
    GROUP BY GROUPING SETS (
        (run_id, split, env_id, model, version), (run_id, split, env_id, model, version, opponent)
    )
    HAVING together OR split = 'eval'
    ORDER BY run_id, split, env_id, model, opponent, version
"""
"""Of seats ``judged``."""
_BY_OPPONENT: Final = f"""
    WITH judged AS ({{evaluated}})
    SELECT run_id, env_id, model, coalesce(opponent, 'alone'), version, win_rate, low, high, games
    FROM ({RESULTS}) WHERE NOT together AND games > 0
"""


class Point(NamedTuple):
    """The evaluation of one checkpoint."""

    update: int
    share: float
    """Of games that it won, 0 to 1."""
    low: float
    """Of the 95 % Wilson interval."""
    high: float
    games: int


@dataclass(frozen=True, slots=True)
class Telling:
    """Results of a run's checkpoints against the opponent that tells most of the latest one."""

    met: Matchup
    against: str
    """The opponent in words."""
    points: Sequence[Point]
    """By update."""

    @property
    def latest(self) -> Point:
        """The result of the latest checkpoint."""
        return self.points[-1]


def against(met: Matchup, *, several: bool) -> str:
    """Return an opponent in words; ``several``: the run plays several environments."""
    alone = met.opponent in (None, "alone")  # as the archive and a view name it
    return ("alone" if alone else f"against {met.label}") + (f" in {met.env_id}" if several else "")


def most_telling(curves: Mapping[Matchup, Sequence[Point]]) -> Telling | None:
    """Return the curve against the opponent that the latest checkpoint beats most nearly half of the time.

    Of several, the one with most games; of several trained models, each has a latest checkpoint. ``None``:
    nothing was evaluated.

    Args:
        curves: points by update, at least one each.
    """
    newest: dict[str | None, int] = {}
    for met, points in curves.items():
        newest[met.model] = max(newest.get(met.model, -1), points[-1].update)
    latest = {met: points[-1] for met, points in curves.items() if points[-1].update == newest[met.model]}
    if not latest:
        return None

    def rank(met: Matchup) -> tuple[float, int, str, str]:
        return (round(abs(latest[met].share - 0.5), 9), -latest[met].games, met.env_id, met.label)

    chosen = min(latest, key=rank)
    several = len({met.env_id for met in curves}) > 1
    return Telling(chosen, against(chosen, several=several), curves[chosen])


def read_telling(archive: ArchiveAddress, run_id: str | None = None) -> dict[str, Telling]:
    """Return the most telling curve of one run, or of each, by its id; who was not evaluated has none.

    Raises:
        ArchiveError: there is no archive.
    """
    evaluated = _EVALUATED.format(condition="run_id IS NOT NULL") if run_id is None else EVALUATED_OF_RUN
    values = {} if run_id is None else {"run": run_id}
    curves: dict[str, dict[Matchup, list[Point]]] = {}
    for run, env_id, model, opponent, *point in query(
        archive, _BY_OPPONENT.format(evaluated=evaluated), values
    ).rows:
        met = Matchup(env_id, opponent, model)
        curves.setdefault(run, {}).setdefault(met, []).append(Point(*point))
    found = {run: most_telling(of_run) for run, of_run in curves.items()}
    return {run: telling for run, telling in found.items() if telling is not None}
