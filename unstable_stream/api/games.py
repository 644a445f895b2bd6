"""Games that were played: found by what happened in them, and told move by move."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Final, Unpack, get_args

from unstable_stream.api.game_filter import GameFilter, Result, Sort, Split, State
from unstable_stream.archive import QueryResult, query
from unstable_stream.errors import ConfigError
from unstable_stream.history.views.transcript import Transcript, TranscriptMove
from unstable_stream.history.views.transcript import load_transcript as load_transcript
from unstable_stream.log.stores.archive_address import ArchiveAddress

if TYPE_CHECKING:
    from rich.console import RenderableType

# The view `games` without what only a game's start knows: to find the start of each of a million games takes
# most of the time. Games in flight are told by their numbers, which are found faster than ids.
_FINISHED: Final = """
SELECT game_id, run_id, 'finished' AS state, split, game_index, env_id, models, winner, reason, invalid_seat,
    num_turns, finished_at AS ended
FROM game_outcomes
"""
_UNFINISHED: Final = """
SELECT a.game_id, a.run_id, 'abandoned' AS state, a.split, a.game_index, s.env_id, s.models, NULL AS winner,
    a.reason, NULL AS invalid_seat, NULL AS num_turns, a.abandoned_at AS ended
FROM ((FROM game_abandonments WHERE abandoned_at >= $since) ANTI JOIN game_outcomes USING (game_id)) AS a
LEFT JOIN game_starts AS s USING (game_id)
UNION ALL
SELECT game_id, run_id, 'in-flight', split, game_index, env_id, models, NULL, NULL, NULL, NULL, started_at
FROM game_starts SEMI JOIN (
    (SELECT run_id, split, game_index FROM game_starts WHERE started_at >= $since)
    ANTI JOIN game_outcomes USING (run_id, split, game_index)
    ANTI JOIN game_abandonments USING (run_id, split, game_index)
) USING (run_id, split, game_index)
WHERE started_at >= $since
"""
_EVER: Final = datetime(1970, 1, 1)
_ORDER: Final[Mapping[str, str]] = {
    "latest": "ended DESC, run_id, split, game_index DESC",
    "earliest": "ended, run_id, split, game_index",
    "longest": "num_turns DESC NULLS LAST, run_id, split, game_index",
    "shortest": "num_turns NULLS LAST, run_id, split, game_index",
    "tokens": "tokens DESC NULLS LAST, run_id, split, game_index",
}
# Games that are not over have no results, but they have seats.
_PLAYERS: Final = """
SELECT game_id, seat, model_uid, kind, opponent, result FROM seats
UNION ALL
SELECT p.game_id, p.seat, p.model_uid, p.kind, array_to_string(list_sort(list(o.model_uid)), ', '), NULL
FROM planned_seats AS p
LEFT JOIN planned_seats AS o ON o.game_id = p.game_id AND o.seat <> p.seat
    AND (o.team IS NULL OR p.team IS NULL OR o.team <> p.team)
WHERE p.game_id IN (SELECT game_id FROM unfinished)
GROUP BY p.game_id, p.seat, p.model_uid, p.kind
"""


_KNOWN: Final = {"split": Split, "state": State, "result": Result, "sort": Sort}
_CONDITIONS: Final = {
    "run": "starts_with(g.run_id, $run)",
    "split": "g.split = $split",
    "state": "g.state = $state",
    "env": "contains(lower(g.env_id), lower($env))",
    "model": "len(list_filter(g.models, lambda uid: uid GLOB $model)) > 0",
    "min_moves": "g.num_turns >= $min_moves",
    "max_moves": "g.num_turns <= $max_moves",
    "update": "g.game_id IN (SELECT game_id FROM steps WHERE step_id IN (SELECT step_id FROM update_steps "
    "WHERE update = $update AND starts_with(run_id, $run)))",
    "invalid": "(g.invalid_seat IS NOT NULL OR "
    "EXISTS (FROM seats AS s WHERE s.game_id = g.game_id AND s.invalid_moves > 0))",
    "truncated": "(g.reason = 'truncated' OR "
    "g.game_id IN (SELECT game_id FROM turns AS t WHERE t.finish_reason = 'length'))",
    "text": "g.game_id IN (SELECT game_id FROM turns AS t WHERE contains(lower(t.completion), lower($text)) "
    "OR contains(lower(t.observation), lower($text)) "
    "UNION ALL SELECT game_id FROM actions AS a WHERE contains(lower(a.action), lower($text)))",
}
"""On the games ``g``, by the name of what is asked for."""
_OF_SEAT: Final = {
    "result": "s.result = $result",
    "seat": "s.seat = $seat",
    "opponent": "list_contains(string_split(s.opponent, ', '), $opponent)",
}
"""On one seat ``s`` of the game, for which all of them have to hold."""


def find_games(
    archive: ArchiveAddress, *, run: str | None = None, **wanted: Unpack[GameFilter]
) -> QueryResult:
    """Return games of an archive, one a row: id, run, split, number, env, seats, winner, …

    Args:
        archive: the DuckDB file.
        run: id of the run, or its beginning.
        wanted: see :class:`~unstable_stream.api.game_filter.GameFilter`.

    Raises:
        ArchiveError: there is no archive.
        ConfigError: a filter has a value that it does not know.
    """
    unknown = wanted.keys() - GameFilter.__annotations__
    if unknown:
        raise TypeError(f"games are not found by {', '.join(sorted(unknown))}")
    asked: dict[str, object] = {"run": run, "limit": 20, "offset": 0, "sort": "latest", **wanted}
    for name, known in _KNOWN.items():
        if asked.get(name) is not None and asked[name] not in get_args(known):
            raise ConfigError(f"{name}={asked[name]!r}: expected one of {', '.join(get_args(known))}")
    sort, limit = str(asked["sort"]), asked["limit"]
    given = {name: value for name, value in asked.items() if value is not None and value is not False}
    conditions = [condition for name, condition in _CONDITIONS.items() if name in given]
    of_seat = [condition for name, condition in _OF_SEAT.items() if name in given]
    if of_seat:
        of_seat.append("s.model_uid GLOB $model" if "model" in given else "s.kind = 'checkpoint'")
        conditions.append(f"g.game_id IN (SELECT game_id FROM players AS s WHERE {' AND '.join(of_seat)})")
    values = {name: value for name, value in given.items() if f"${name}" in " ".join(conditions)}
    values |= {"limit": limit, "offset": asked["offset"]}
    if "update" in given:
        values["run"] = run or ""
    since = _EVER
    if sort == "latest" and limit and not of_seat:
        # So many are shown: what began before the last of so many finished games need not be looked at.
        newest = query(
            archive,
            f"SELECT ended FROM ({_FINISHED}) AS g {_where(conditions)} ORDER BY ended DESC "
            "LIMIT 1 OFFSET $limit + $offset - 1",
            values,
        ).rows
        since = newest[0][0] if newest else _EVER
        conditions.append("g.ended >= $since")
    values["since"] = since
    where = _where(conditions)
    # Which games they are comes first; only then are they put into words, and their tokens counted.
    sampled = (
        "(SELECT sum(completion_tokens) FROM trajectories AS t WHERE t.game_id = g.game_id)"
        if sort == "tokens"
        else "NULL"
    )
    order = _ORDER[sort]
    return query(
        archive,
        f"""
        WITH unfinished AS ({_UNFINISHED}), players AS ({_PLAYERS}), found AS MATERIALIZED (
            SELECT *, {sampled} AS tokens FROM ({_FINISHED} UNION ALL FROM unfinished) AS g {where}
            ORDER BY {order} LIMIT $limit OFFSET $offset
        ), sampled AS (
            SELECT game_id, sum(completion_tokens) AS tokens FROM trajectories
            WHERE game_id IN (SELECT game_id FROM found) GROUP BY game_id
        )
        SELECT game_id AS game, run_id AS run, split, game_index AS number, env_id AS env,
            array_to_string(models, ' – ') AS seats,
            CASE WHEN state <> 'finished' THEN state ELSE coalesce(winner, 'nobody') END AS winner,
            reason, num_turns AS moves, s.tokens AS tokens, ended
        FROM found AS f LEFT JOIN sampled AS s USING (game_id) ORDER BY {order.replace("tokens", "s.tokens")}
        """,
        values,
    )


def _where(conditions: Sequence[str]) -> str:
    return f"WHERE {' AND '.join(conditions)}" if conditions else ""


@dataclass(frozen=True)
class Game:
    """One game."""

    archive: ArchiveAddress = field(repr=False)
    """The archive it is read from."""
    id: str
    run_id: str
    split: str
    """``train`` or ``eval``."""
    number: int
    """Counts the games of the run's split from 0."""
    env_id: str
    seats: str
    """The models' uids in the order of their seats."""
    winner: str
    """A model's uid, ``nobody``, or the state of a game that is not finished."""
    reason: str | None
    """``win``, ``draw``, ``invalid`` or ``truncated``."""
    moves: int | None
    tokens: int | None
    """Sampled tokens of all seats."""
    ended: datetime
    """UTC; when it began if it has not ended."""

    @property
    def transcript(self) -> Transcript:
        """All that is recorded of it, seat by seat and move by move."""
        return load_transcript(self.archive, self.id)

    @property
    def turns(self) -> Sequence[TranscriptMove]:
        """Its moves in order: observation, completion, tokens, log-probabilities, action, rewards."""
        return self.transcript.moves

    def show(self, *, tokens: bool = False, prompts: bool = False) -> None:
        """Print the game move by move.

        Args:
            tokens: each sampled token with its log-probability in nats.
            prompts: also what the engine was given, word for word.
        """
        from unstable_stream.console import plain_console

        plain_console(highlight=False).print(
            shown_game(self.archive, self.transcript, tokens=tokens, prompts=prompts)
        )


def game_list(archive: ArchiveAddress, found: QueryResult) -> list[Game]:
    """Return rows of :func:`find_games` as objects."""
    return [Game(archive, *row) for row in found.rows]  # columns in the order of the fields


def shown_game(
    archive: ArchiveAddress, transcript: Transcript, *, tokens: bool = False, prompts: bool = False
) -> "RenderableType":
    """Return a transcript ready to print with Rich; see :meth:`Game.show`."""
    from unstable_stream.history.views.game_text import render

    return render(transcript, texts=_token_texts(archive, transcript) if tokens else None, prompts=prompts)


def _token_texts(archive: ArchiveAddress, transcript: Transcript) -> dict[int, Sequence[str]]:
    """Return the tokens' texts by game turn: of checkpoints' moves, if their tokenizer is on this machine."""
    from unstable_stream.history.views.transcript import tokens_of

    tokens, with_texts = tokens_of(archive, transcript)
    return {turn: [token.text for token in each] for turn, each in tokens.items()} if with_texts else {}
