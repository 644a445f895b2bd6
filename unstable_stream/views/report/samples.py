"""Choose a few games worth reading, with the log-probability of each sampled token."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from unstable_stream.archive import query
from unstable_stream.archive_address import ArchiveAddress
from unstable_stream.views.tokens import Token, tokens_of
from unstable_stream.views.transcript import Move, Transcript, load_transcript

__all__ = ["SampleGame", "pick_samples"]

# A page must open on a telephone: of very long games and completions the middle is left out.
_FIRST_MOVES, _LAST_MOVES = 24, 12
_MOST_TOKENS = 1200

# The checkpoint under evaluation, in finished evaluation games.
_EVALUATED = """
    SELECT o.game_id, o.game_index, o.seed, o.env_id, s.seat, s.opponent, s.result,
        s.policy_version AS version
    FROM game_outcomes AS o JOIN seats AS s USING (game_id)
    WHERE o.run_id = $run AND o.split = 'eval' AND s.model_uid = o.evaluated_uid
"""
_LAST = "version = (SELECT max(version) FROM evaluated) ORDER BY game_index LIMIT 1"
# Evaluation games are played with the same seeds each time, so the same game can be shown before and after.
_PAIR = f"""
    WITH evaluated AS ({_EVALUATED})
    SELECT a.game_id, b.game_id FROM evaluated AS a
    JOIN evaluated AS b ON (a.env_id, a.seed, a.seat, a.opponent) = (b.env_id, b.seed, b.seat, b.opponent)
    WHERE a.version = (SELECT min(version) FROM evaluated)
        AND b.version = (SELECT max(version) FROM evaluated)
        AND a.version < b.version AND a.result = 'loss' AND b.result = 'win'
    ORDER BY b.game_index LIMIT 1
"""
_CHOICES: Mapping[str, str] = {
    "A win of the last checkpoint": f"""
        WITH evaluated AS ({_EVALUATED}) SELECT game_id FROM evaluated WHERE result = 'win' AND {_LAST}
    """,
    "A loss of the last checkpoint": f"""
        WITH evaluated AS ({_EVALUATED}) SELECT game_id FROM evaluated WHERE result = 'loss' AND {_LAST}
    """,
    "A game ended by an invalid move": """
        SELECT o.game_id FROM game_outcomes AS o JOIN seats AS s USING (game_id)
        WHERE o.run_id = $run AND s.ended_invalid AND s.kind = 'checkpoint'
        ORDER BY s.policy_version DESC, o.split, o.game_index LIMIT 1
    """,
    "The longest game": """
        SELECT game_id FROM longest_games WHERE run_id = $run
        ORDER BY num_turns DESC, completion_tokens DESC, split, game_index LIMIT 1
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
    moves: Sequence[Move]
    """The moves that are shown."""
    left_out_after: int | None
    """The shown move after which some are left out; ``None``: all are shown."""
    tokens: Mapping[int, Sequence[Token]]
    """Sampled tokens by game turn, at most ``_MOST_TOKENS`` of a move."""
    with_texts: bool
    """``True`` if the tokens' texts are known; otherwise tokens are shown as numbers."""

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
    run = {"run": run_id}
    reasons: dict[str, list[str]] = {}
    for before, after in query(archive, _PAIR, run).rows if limit > 1 else ():
        reasons[before] = ["First checkpoint: the same game before training, lost"]
        reasons[after] = ["Last checkpoint: the same game after training, won"]
    for reason, sql in _CHOICES.items():
        for (game,) in query(archive, sql, run).rows:
            if game in reasons or len(reasons) < limit:
                reasons.setdefault(game, []).append(reason)
    samples = []
    for game, why in reasons.items():
        transcript = load_transcript(archive, game)
        moves, cut = _shown(transcript.moves)
        tokens, with_texts = tokens_of(archive, transcript, moves, most=_MOST_TOKENS, tokenizer=tokenizer)
        samples.append(SampleGame(why, transcript, moves, cut, tokens, with_texts))
    return samples


def _shown(moves: Sequence[Move]) -> tuple[Sequence[Move], int | None]:
    if len(moves) <= _FIRST_MOVES + _LAST_MOVES:
        return moves, None
    return [*moves[:_FIRST_MOVES], *moves[-_LAST_MOVES:]], moves[_FIRST_MOVES - 1].game_turn
