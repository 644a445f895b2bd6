"""Put one game together from the archive's tables, move by move."""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from unstable_stream.archive.read import query
from unstable_stream.errors import ArchiveError
from unstable_stream.inference.base_model import token_texts, tokenizer_on_disk
from unstable_stream.log.stores.archive_address import ArchiveAddress

_SHOWN_MATCHES = 5

_GAMES = """
SELECT
    game_id, run_id, state, split, game_index, env_id, seed, reason, reason_text, winner,
    invalid_seat, started_at, ended_at, parent_game_id, parent_turn
FROM games WHERE game_id IN ({games})
"""
_SEATS = """
WITH planned AS (FROM planned_seats WHERE game_id IN ({games})),
    seated AS (FROM seats WHERE game_id IN ({games}))
SELECT
    game_id, seat, coalesce(s.model_uid, p.model_uid) AS model_uid, coalesce(s.kind, p.kind) AS kind,
    p.template, coalesce(s.trained, p.trained) AS trained, s.role, s.reward, s.result
FROM planned AS p FULL JOIN seated AS s USING (game_id, seat)
ORDER BY seat
"""
_MOVES = """
WITH moves AS (FROM actions WHERE game_id IN ({games})),
    said AS (FROM turns WHERE game_id IN ({games})),
    shaped AS (FROM steps WHERE game_id IN ({games})),
    used AS (FROM update_steps WHERE step_id IN (SELECT step_id FROM shaped))
SELECT
    a.game_id, a.game_turn, a.seat, a.action, a.valid,
    t.observation, t.completion, t.completion_tokens, t.finish_reason, t.prompt, t.prompt_tokens,
    t.policy_version, t.latency_ms,
    t.format_feedback::MAP(VARCHAR, BOOLEAN) AS format_feedback,
    coalesce(t.completion_token_ids, []) AS token_ids, coalesce(t.logprobs, []) AS logprobs,
    s.step_id, s.raw_reward, s.final_reward, s.reward AS step_reward,
    CASE WHEN s.step_id IS NOT NULL THEN coalesce(u.fate, 'pending') END AS fate,
    u.update, u.model, u.reason AS drop_reason
FROM moves AS a
LEFT JOIN said AS t USING (game_id, game_turn, seat)
LEFT JOIN shaped AS s USING (trajectory_id, turn_index)
LEFT JOIN used AS u USING (step_id)
ORDER BY a.game_turn
"""

_PLAYED = """
WITH moves AS (FROM actions WHERE game_id IN ({games})),
    said AS (SELECT game_id, game_turn, seat, observation FROM turns WHERE game_id IN ({games}))
SELECT a.game_id, o.env_id, a.game_turn, a.seat, a.action, a.valid, t.observation
FROM moves AS a JOIN (FROM game_outcomes WHERE game_id IN ({games})) AS o USING (game_id)
LEFT JOIN said AS t USING (game_id, game_turn, seat)
ORDER BY a.game_turn
"""
_SURPRISES = """
SELECT t.game_id AS game, o.split, o.game_index AS number, t.game_turn AS turn, t.seat, s.model_uid AS player,
    s.opponent, t.action, t.valid, s.result, t.logprob
FROM (
    SELECT game_id, game_turn, seat, action, valid, list_sum(logprobs) AS logprob FROM turns
    WHERE run_id = $run AND len(logprobs) > 0 ORDER BY logprob, game_id, game_turn LIMIT $most
) AS t
JOIN game_outcomes AS o USING (game_id) JOIN seats AS s USING (game_id, seat)
ORDER BY t.logprob, t.game_id, t.game_turn
"""
_MOST_MARKED = 3
_EVEN = math.log(0.5)


@dataclass(frozen=True, slots=True)
class SeatLine:
    """The model of a seat, and its result if the game finished."""

    seat: int
    model_uid: str
    kind: str
    template: str | None
    trained: bool
    role: str | None
    reward: float | None
    result: str | None
    """``win``, ``draw`` or ``loss``; ``None``: not finished."""


@dataclass(frozen=True, slots=True)
class TranscriptMove:
    """One move. The log does not record observations and prompts of scripted players."""

    game_turn: int
    seat: int
    action: str
    valid: bool
    observation: str | None
    """The part of the observation that the seat had not been shown before its previous move."""
    completion: str | None
    completion_tokens: int | None
    finish_reason: str | None
    prompt: str | None = None
    """The whole observation in the model's template, as the engine got it."""
    prompt_tokens: int | None = None
    policy_version: int | None = None
    """Update whose weights sampled it; ``None``: a fixed opponent."""
    latency_ms: float | None = None
    format_feedback: Mapping[str, bool] | None = None
    """Findings of the action extraction."""
    token_ids: Sequence[int] = ()
    """The sampled token ids; as many as ``logprobs``."""
    logprobs: Sequence[float] = ()
    """Nats, one per sampled token."""
    step_id: str | None = None
    """The training step made of this turn; ``None``: there is none, nor are the next four fields set."""
    raw_reward: float | None = None
    """The environment's final reward for the seat."""
    final_reward: float | None = None
    """The reward after the final reward transformations."""
    step_reward: float | None = None
    """The reward after the step reward transformations, which the learner saw."""
    fate: str | None = None
    """``trained``, ``dropped`` or ``pending``."""
    update: int | None = None
    """The update that trained on the step or dropped it."""
    drop_reason: str | None = None
    model: str | None = None
    """The trained model whose update it was; ``None``: the run trains one."""

    @property
    def answer_logprob(self) -> float | None:
        """Nats of the whole answer; ``None``: they are not recorded."""
        return sum(self.logprobs) if self.logprobs else None

    @property
    def update_name(self) -> str:
        """The update's number, after the model's name if there are several."""
        return f"{self.model}/{self.update}" if self.model else str(self.update)


@dataclass(frozen=True, slots=True)
class Transcript:
    """A game."""

    game_id: str
    run_id: str
    state: str
    split: str
    game_index: int
    env_id: str | None
    seed: int | None
    reason: str | None
    reason_text: str | None
    winner: str | None
    invalid_seat: int | None
    started_at: datetime | None
    ended_at: datetime | None
    seats: Sequence[SeatLine]
    moves: Sequence[TranscriptMove]
    parent_game_id: str | None = None
    """The game from a position of which it was played on; ``None``: it began at the beginning."""
    parent_turn: int | None = None
    """The number of that game's moves before the position."""


def load_transcript(path: ArchiveAddress, game_id_prefix: str) -> Transcript:
    """Return the game with this id, or the one game whose id starts with it.

    Raises:
        ArchiveError: no game or several games match; names some.
    """
    games = [
        game
        for (game,) in query(
            path,
            "SELECT game_id FROM games WHERE starts_with(game_id, ?) ORDER BY game_id LIMIT ?",
            [game_id_prefix, _SHOWN_MATCHES + 1],
        ).rows
    ]
    if not games:
        raise ArchiveError(f"no game's id starts with {game_id_prefix!r}. List games: unstable-stream games")
    if len(games) > 1 and games[0] != game_id_prefix:  # a whole id comes first
        names = ", ".join(games[:_SHOWN_MATCHES])
        more = ", …" if len(games) > _SHOWN_MATCHES else ""
        raise ArchiveError(
            f"several games' ids start with {game_id_prefix!r}: {names}{more}. Give more of it."
        )
    (transcript,) = load_transcripts(path, games[:1])
    return transcript


def load_transcripts(path: ArchiveAddress, game_ids: Sequence[str]) -> list[Transcript]:
    """Return the games with these whole ids, in their order.

    The archive keeps games in no order of their ids and scans all of them, for several games as for one.

    Raises:
        ArchiveError: there is no game with one of the ids.
    """
    if not game_ids:
        return []
    # Constants reach the scans below a view's joins; a list or a subquery does not.
    wanted = ", ".join(f"${place}" for place in range(1, len(game_ids) + 1))

    def rows(sql: str) -> list[dict[str, Any]]:
        return query(path, sql.format(games=wanted), list(game_ids)).dicts()

    games = {game["game_id"]: game for game in rows(_GAMES)}
    if unknown := [game for game in game_ids if game not in games]:
        raise ArchiveError(f"no game has the id {unknown[0]!r}. List games: unstable-stream games")
    seats, moves = _by_game(rows(_SEATS)), _by_game(rows(_MOVES))
    return [
        Transcript(
            **games[game],
            seats=[SeatLine(**seat) for seat in seats.get(game, ())],
            moves=[TranscriptMove(**move) for move in _only_new(moves.get(game, ()))],
        )
        for game in game_ids
    ]


def _by_game(rows: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Group rows by their game, which is taken out of them."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row.pop("game_id"), []).append(row)
    return found


def _only_new(moves: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    shown: dict[int, str] = {}
    cut = []
    for move in moves:
        observation = move["observation"]
        if observation is not None:
            move = move | {"observation": new_part(shown.get(move["seat"], ""), observation)}
            shown[move["seat"]] = observation
        cut.append(move)
    return cut


def played_moves(
    path: ArchiveAddress, game_ids: Sequence[str]
) -> dict[str, tuple[str, list[TranscriptMove]]]:
    """Return the environments and moves of finished games by their ids, with no more than boards need."""
    if not game_ids:
        return {}
    wanted = ", ".join(f"${place}" for place in range(1, len(game_ids) + 1))
    found: dict[str, tuple[str, list[TranscriptMove]]] = {}
    for game, env_id, turn, seat, action, valid, seen in query(
        path, _PLAYED.format(games=wanted), list(game_ids)
    ).rows:
        move = TranscriptMove(turn, seat, action, valid, seen, None, None, None)
        found.setdefault(game, (env_id, []))[1].append(move)
    return found


def surprises(moves: Sequence[TranscriptMove]) -> list[int]:
    """Return the turns of the least probable answers, the least first: a few, each less likely than not."""
    unlikely = [(value, move.game_turn) for move in moves if (value := _sure(move)) < _EVEN]
    return [turn for _, turn in sorted(unlikely)[:_MOST_MARKED]]


def _sure(move: TranscriptMove) -> float:
    return 0.0 if move.answer_logprob is None else move.answer_logprob


def surprising_moves(path: ArchiveAddress, run_id: str, most: int = 50) -> list[dict[str, Any]]:
    """Return the least probable answers in a run's finished games, the least first, and against whom."""
    return query(path, _SURPRISES, {"run": run_id, "most": most}).dicts()


def new_part(before: str, now: str) -> str:
    """Return the part of ``now`` that ``before`` does not show.

    An observation that goes on where the last one ended is cut there. One that shows a changed board is cut
    at the first blank line before the change, so that a board stays whole. The same again is shown whole.
    """
    if now == before:
        return now
    if now.startswith(before):
        return now[len(before) :].lstrip("\n")
    old, new = before.split("\n\n"), now.split("\n\n")
    same = 0
    while same < min(len(old), len(new)) and old[same] == new[same]:
        same += 1
    return "\n\n".join(new[same:]).lstrip("\n") or now


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


_tokenizer = functools.lru_cache(maxsize=8)(tokenizer_on_disk)
