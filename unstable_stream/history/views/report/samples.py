"""Choose a few games worth reading, with the log-probability of each sampled token."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import itemgetter
from typing import Any

from unstable_stream.archive import query
from unstable_stream.history.views.report.charts import grouped
from unstable_stream.history.views.report.reading import Row
from unstable_stream.history.views.transcript import (
    TokensOfGame,
    Transcript,
    TranscriptMove,
    load_transcripts,
    tokens_of,
)
from unstable_stream.history.views.written import share
from unstable_stream.log.stores.archive_address import ArchiveAddress

# A page must open on a telephone: of very long games and completions the middle is left out.
_FIRST_MOVES, _LAST_MOVES = 24, 12
_MOST_TOKENS = 1200

# What several choices read: one query makes it once for all of them.
_SHARED = """
    -- The checkpoint under evaluation, in finished evaluation games.
    evaluated AS MATERIALIZED (
        SELECT o.game_id, o.game_index, o.seed, o.env_id, s.seat, s.opponent, s.result,
            s.policy_version AS version
        FROM game_outcomes AS o JOIN seats AS s USING (game_id)
        WHERE o.run_id = $run AND o.split = 'eval' AND s.model_uid = o.evaluated_uid
    ),
    last AS (FROM evaluated WHERE version = (SELECT max(version) FROM evaluated)),
    -- Evaluation games are played with the same seeds each time: the same game before and after training.
    pair AS (
        SELECT a.game_id AS before, b.game_id AS after FROM evaluated AS a
        JOIN last AS b ON (a.env_id, a.seed, a.seat, a.opponent) = (b.env_id, b.seed, b.seat, b.opponent)
        WHERE a.version = (SELECT min(version) FROM evaluated)
            AND a.version < b.version AND a.result = 'loss' AND b.result = 'win'
        ORDER BY b.game_index LIMIT 1
    ),
    longest AS (
        FROM game_outcomes WHERE run_id = $run
            AND num_turns = (SELECT max(num_turns) FROM game_outcomes WHERE run_id = $run)
    )
"""
_PAIR = """
    SELECT before AS game_id, 'First checkpoint: the same game before training, lost' AS reason FROM pair
    UNION ALL
    SELECT after, 'Last checkpoint: the same game after training, won' FROM pair
"""
# Games that tell the story of a run, in this order; each choice says why its game is here.
_STORIES: Sequence[str] = (
    """
    SELECT game_id, 'The first game' AS reason FROM game_outcomes WHERE run_id = $run
    ORDER BY split DESC, game_index LIMIT 1
    """,
    # What the policy learned between two evaluations: a game that it lost before if there is one.
    """
    SELECT b.game_id, $jump AS reason FROM evaluated AS b
    LEFT JOIN evaluated AS a
        ON (a.env_id, a.seed, a.seat, a.opponent) = (b.env_id, b.seed, b.seat, b.opponent)
        AND a.version = $before AND a.result = 'loss'
    WHERE b.version = $after AND b.env_id = $env AND b.opponent = $opponent AND b.result = 'win'
    ORDER BY a.game_id IS NULL, b.game_index LIMIT 1
    """,
    """
    SELECT game_id, format('The most surprising answer of the policy: at move {}, with a log-probability of '
        '{:.1f} nats', game_turn, likely) AS reason
    FROM (
        SELECT t.game_id, t.game_turn, o.split, o.game_index, list_sum(t.logprobs) AS likely
        FROM turns AS t JOIN game_outcomes AS o USING (game_id)
        WHERE t.run_id = $run AND o.run_id = $run AND t.policy_version IS NOT NULL
            AND t.game_turn = coalesce(o.least_likely_turn, t.game_turn)
    ) WHERE likely IS NOT NULL ORDER BY likely, split, game_index, game_turn LIMIT 1
    """,
    """
    SELECT o.game_id, format('The longest game: {} moves', any_value(o.num_turns)) AS reason
    FROM longest AS o LEFT JOIN trajectories AS t USING (game_id)
    GROUP BY o.game_id, o.split, o.game_index
    ORDER BY coalesce(sum(t.completion_tokens), 0) DESC, o.split, o.game_index LIMIT 1
    """,
    # The opponents with most games first; against each a win, then a loss.
    """
    SELECT game_id, format('{} of the last checkpoint against {}',
        CASE result WHEN 'win' THEN 'A win' ELSE 'A loss' END, opponent) AS reason
    FROM (
        SELECT *, row_number() OVER (PARTITION BY opponent, result ORDER BY game_index) AS place,
            count(*) OVER (PARTITION BY opponent) AS games FROM last
    ) WHERE place = 1 AND result IN ('win', 'loss') ORDER BY games DESC, opponent, result DESC
    """,
    """
    SELECT s.game_id, format('An upset: {} won, which it did in {:.1f} % of its games against {}',
        s.model_uid, 100 * p.win_rate, s.opponent) AS reason
    FROM seats AS s JOIN payoff_matrix AS p
        ON (p.split, p.env_id, p.model_uid, p.opponent_uid) = (s.split, s.env_id, s.model_uid, s.opponent)
    WHERE s.run_id = $run AND p.run_id = $run AND s.result = 'win' AND p.win_rate < 0.5 AND p.games >= 10
    ORDER BY p.win_rate, s.model_uid, s.opponent, s.game_id LIMIT 1
    """,
    """
    SELECT o.game_id, 'A game ended by an invalid move' AS reason
    FROM game_outcomes AS o JOIN seats AS s USING (game_id)
    WHERE o.run_id = $run AND s.ended_invalid AND s.kind = 'checkpoint'
    ORDER BY s.policy_version DESC, o.split, o.game_index LIMIT 1
    """,
    """
    SELECT t.game_id, 'A completion cut at the token limit' AS reason
    FROM turns AS t JOIN game_outcomes AS o USING (game_id)
    WHERE t.run_id = $run AND t.finish_reason = 'length' ORDER BY o.split, o.game_index DESC LIMIT 1
    """,
    """
    SELECT t.game_id, 'A game trained on' AS reason FROM trajectories AS t
    WHERE t.run_id = $run AND t.trained AND t.num_turns > 0
        AND NOT t.invalid_move AND NOT t.opponent_invalid
    ORDER BY t.policy_version DESC, t.game_index LIMIT 1
    """,
)


@dataclass(frozen=True, slots=True)
class SampleGame:
    """One game to read."""

    reasons: Sequence[str]
    """The reason for choosing it."""
    transcript: Transcript
    moves: Sequence[TranscriptMove]
    """The moves that are shown."""
    left_out_after: int | None
    """The shown move after which some are left out; ``None``: all are shown."""
    tokens: TokensOfGame
    """At most ``_MOST_TOKENS`` of a move; without texts they are shown as numbers."""

    @property
    def players(self) -> dict[int, str]:
        """Model uid by seat."""
        return {line.seat: line.model_uid for line in self.transcript.seats}


def pick_samples(
    archive: ArchiveAddress,
    run_id: str,
    *,
    limit: int,
    results: Sequence[Row] = (),
    tokenizer: str | None = None,
) -> list[SampleGame]:
    """Return at most ``limit`` different games, the most telling first.

    Args:
        archive: the archive.
        run_id: the run.
        limit: most games.
        results: of its policies against each opponent, in which the turning point of the run is looked for.
        tokenizer: directory of the base model's tokenizer, if the model is not where the run found it.
    """
    reasons = _reasons(archive, run_id, limit, results)
    transcripts = load_transcripts(archive, list(reasons))
    samples = []
    for transcript, why in zip(transcripts, reasons.values(), strict=True):
        moves, cut = _shown(transcript.moves)
        tokens = tokens_of(archive, transcript, moves, most=_MOST_TOKENS, tokenizer=tokenizer)
        samples.append(SampleGame(why, transcript, moves, cut, tokens))
    return samples


def shortened(sample: SampleGame) -> SampleGame:
    """Return the game with half of its moves, its beginning and its end; at least one."""
    half = max(1, len(sample.moves) // 2)
    first = (half + 1) // 2
    moves = [*sample.moves[:first], *sample.moves[len(sample.moves) - half + first :]]
    return replace(sample, moves=moves, left_out_after=moves[first - 1].game_turn if moves else None)


def _reasons(
    archive: ArchiveAddress, run_id: str, limit: int, results: Sequence[Row]
) -> Mapping[str, Sequence[str]]:
    """Return the games to show, each with the reasons for it."""
    choices = [*([_PAIR] if limit > 1 else []), *_STORIES]
    parts = (
        f"SELECT {place} AS place, row_number() OVER () AS row, game_id, reason FROM ({sql})"
        for place, sql in enumerate(choices)
    )
    chosen = {"run": run_id} | _turning_point(results)
    found = query(archive, f"WITH {_SHARED} {' UNION ALL '.join(parts)} ORDER BY place, row", chosen).rows
    reasons: dict[str, list[str]] = {}
    for _, _, game, reason in found:
        if game in reasons or len(reasons) < limit:
            reasons.setdefault(game, []).append(reason)
    return reasons


def _turning_point(results: Sequence[Row]) -> dict[str, Any]:
    """Return where the win rate against one opponent rose most from one evaluation to the next.

    ``Any``: parameters of the query; all are NULL if it never rose.
    """
    by_opponent = grouped(results, "env_id", "opponent", "model").values()
    pairs = [
        (one, other)
        for rows in by_opponent
        for one, other in pairwise(sorted(rows, key=itemgetter("version")))
        if other["win_rate"] > one["win_rate"]
    ]
    if not pairs:
        return dict.fromkeys(("jump", "before", "after", "env", "opponent"))
    before, after = max(pairs, key=lambda pair: pair[1]["win_rate"] - pair[0]["win_rate"])
    jump = (
        f"The turning point: from update {before['version']} to {after['version']} the win rate against "
        f"{after['opponent']} rose from {share(before['win_rate'])} to {share(after['win_rate'])}, more than "
        "between any other two evaluations"
    )
    where = {"env": after["env_id"], "opponent": after["opponent"]}
    return {"jump": jump, "before": before["version"], "after": after["version"], **where}


def _shown(moves: Sequence[TranscriptMove]) -> tuple[Sequence[TranscriptMove], int | None]:
    if len(moves) <= _FIRST_MOVES + _LAST_MOVES:
        return moves, None
    return [*moves[:_FIRST_MOVES], *moves[-_LAST_MOVES:]], moves[_FIRST_MOVES - 1].game_turn
