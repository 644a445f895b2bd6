"""Read the sampled tokens of a game, with their texts where the model's tokenizer is on this machine."""

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from unstable_stream.archive import query
from unstable_stream.archive_address import ArchiveAddress
from unstable_stream.inference.token_texts import token_texts, tokenizer_on_disk
from unstable_stream.views.transcript import Transcript, TranscriptMove

if TYPE_CHECKING:
    from unstable_stream.inference.tokenizer import Tokenizer

__all__ = ["Token", "TokensOfGame", "tokens_of"]


class Token(NamedTuple):
    """One sampled token."""

    text: str
    """The text that it adds; its number with ``#`` where that is not known."""
    token_id: int
    logprob: float
    """Nats."""


class TokensOfGame(NamedTuple):
    """The tokens of a game's checkpoints."""

    by_turn: Mapping[int, Sequence[Token]]
    """By game turn."""
    with_texts: bool
    """``True`` if the tokens' texts are known."""


def tokens_of(
    archive: ArchiveAddress,
    transcript: Transcript,
    moves: Sequence[TranscriptMove] | None = None,
    *,
    most: int | None = None,
    tokenizer: str | None = None,
) -> TokensOfGame:
    """Return the tokens that the checkpoints of a game sampled.

    Args:
        archive: the archive.
        transcript: the game.
        moves: of these moves; ``None``: of all.
        most: at most so many of a move.
        tokenizer: directory of the tokenizer, if the model is not where the run found it.
    """
    models = query(
        archive, "SELECT any_value(base_model) FROM checkpoints WHERE run_id = ?", [transcript.run_id]
    ).rows
    known = _tokenizer(tokenizer or models[0][0] or "")
    own = {line.seat for line in transcript.seats if line.kind == "checkpoint"}
    found = {}
    for move in transcript.moves if moves is None else moves:
        if move.seat in own and move.token_ids:
            shown = move.token_ids[:most]
            texts = token_texts(known, shown) if known else [f"#{token}" for token in shown]
            found[move.game_turn] = [
                Token(*token) for token in zip(texts, shown, move.logprobs, strict=False)
            ]
    return TokensOfGame(found, known is not None)


@functools.lru_cache(maxsize=8)
def _tokenizer(base_model: str) -> "Tokenizer | None":
    return tokenizer_on_disk(base_model)
