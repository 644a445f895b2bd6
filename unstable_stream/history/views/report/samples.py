"""Choose a few games worth reading, with the log-probability of each sampled token."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from unstable_stream.archive import query
from unstable_stream.history.views.transcript import (
    TokensOfGame,
    Transcript,
    TranscriptMove,
    load_transcripts,
    tokens_of,
)
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
_PAIR: Mapping[str, str] = {
    "First checkpoint: the same game before training, lost": "SELECT before AS game_id FROM pair",
    "Last checkpoint: the same game after training, won": "SELECT after AS game_id FROM pair",
}
_CHOICES: Mapping[str, str] = {
    "A win of the last checkpoint": """
        SELECT game_id FROM last WHERE result = 'win' ORDER BY game_index LIMIT 1
    """,
    "A loss of the last checkpoint": """
        SELECT game_id FROM last WHERE result = 'loss' ORDER BY game_index LIMIT 1
    """,
    "A game ended by an invalid move": """
        SELECT o.game_id FROM game_outcomes AS o JOIN seats AS s USING (game_id)
        WHERE o.run_id = $run AND s.ended_invalid AND s.kind = 'checkpoint'
        ORDER BY s.policy_version DESC, o.split, o.game_index LIMIT 1
    """,
    "The longest game": """
        SELECT o.game_id FROM longest AS o LEFT JOIN trajectories AS t USING (game_id)
        GROUP BY o.game_id, o.split, o.game_index
        ORDER BY coalesce(sum(t.completion_tokens), 0) DESC, o.split, o.game_index LIMIT 1
    """,
    "A completion cut at the token limit": """
        SELECT t.game_id FROM turns AS t JOIN game_outcomes AS o USING (game_id)
        WHERE t.run_id = $run AND t.finish_reason = 'length' ORDER BY o.split, o.game_index DESC LIMIT 1
    """,
    "A game trained on": """
        SELECT t.game_id FROM trajectories AS t
        WHERE t.run_id = $run AND t.trained AND t.num_turns > 0
            AND NOT t.invalid_move AND NOT t.opponent_invalid
        ORDER BY t.policy_version DESC, t.game_index LIMIT 1
    """,
    "The first game": """
        SELECT game_id FROM game_outcomes WHERE run_id = $run ORDER BY split DESC, game_index LIMIT 1
    """,
}


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
    archive: ArchiveAddress, run_id: str, *, limit: int, tokenizer: str | None = None
) -> list[SampleGame]:
    """Return at most ``limit`` different games, the most telling first.

    Args:
        archive: the archive.
        run_id: the run.
        limit: most games.
        tokenizer: directory of the base model's tokenizer, if the model is not where the run found it.
    """
    reasons = _reasons(archive, run_id, limit)
    transcripts = load_transcripts(archive, list(reasons))
    samples = []
    for transcript, why in zip(transcripts, reasons.values(), strict=True):
        moves, cut = _shown(transcript.moves)
        tokens = tokens_of(archive, transcript, moves, most=_MOST_TOKENS, tokenizer=tokenizer)
        samples.append(SampleGame(why, transcript, moves, cut, tokens))
    return samples


def _reasons(archive: ArchiveAddress, run_id: str, limit: int) -> Mapping[str, Sequence[str]]:
    """Return the games to show, each with the reasons for it."""
    choices = {**(_PAIR if limit > 1 else {}), **_CHOICES}
    parts = (f"SELECT {place} AS place, game_id FROM ({sql})" for place, sql in enumerate(choices.values()))
    found = query(archive, f"WITH {_SHARED} {' UNION ALL '.join(parts)} ORDER BY place", {"run": run_id}).rows
    names = list(choices)
    reasons: dict[str, list[str]] = {}
    for place, game in found:
        if game in reasons or len(reasons) < limit:
            reasons.setdefault(game, []).append(names[place])
    return reasons


def _shown(moves: Sequence[TranscriptMove]) -> tuple[Sequence[TranscriptMove], int | None]:
    if len(moves) <= _FIRST_MOVES + _LAST_MOVES:
        return moves, None
    return [*moves[:_FIRST_MOVES], *moves[-_LAST_MOVES:]], moves[_FIRST_MOVES - 1].game_turn
