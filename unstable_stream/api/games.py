"""Games that were played: found by what happened in them, and told move by move."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

from unstable_stream.archive import QueryResult, query
from unstable_stream.errors import ConfigError
from unstable_stream.views.transcript import Move, Transcript, load_transcript

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = [
    "Game",
    "Result",
    "Sort",
    "Split",
    "State",
    "find_games",
    "game_list",
    "load_transcript",
    "shown_game",
]

Split: TypeAlias = Literal["train", "eval", "human"]
State: TypeAlias = Literal["finished", "abandoned", "in-flight"]
Result: TypeAlias = Literal["win", "draw", "loss"]
Sort: TypeAlias = Literal["latest", "earliest", "longest", "shortest", "tokens"]

_TOKENS: Final = "(SELECT sum(completion_tokens) FROM trajectories AS t WHERE t.game_id = g.game_id)"
_ORDER: Final[Mapping[str, str]] = {
    "latest": "ended DESC, run, split, number DESC",
    "earliest": "ended, run, split, number",
    "longest": "moves DESC NULLS LAST, run, split, number",
    "shortest": "moves NULLS LAST, run, split, number",
    "tokens": "tokens DESC NULLS LAST, run, split, number",
}
# Games that are not over have no results, but they have seats.
_PLAYERS: Final = """
SELECT game_id, seat, model_uid, kind, opponent, result FROM seats
UNION ALL
SELECT p.game_id, p.seat, p.model_uid, p.kind, array_to_string(list_sort(list(o.model_uid)), ', '), NULL
FROM planned_seats AS p
LEFT JOIN planned_seats AS o ON o.game_id = p.game_id AND o.seat <> p.seat
WHERE p.game_id NOT IN (SELECT game_id FROM game_outcomes)
GROUP BY p.game_id, p.seat, p.model_uid, p.kind
"""


@dataclass
class _Filter:
    """Conditions on the games ``g``, all of which must hold."""

    conditions: list[str] = field(default_factory=list)
    values: dict[str, object] = field(default_factory=dict)

    def require(self, wanted: bool, condition: str, **values: object) -> None:
        if wanted:
            self.conditions.append(condition)
            self.values.update(values)

    def require_seat(self, conditions: Sequence[str], **values: object) -> None:
        """Require one seat of the game for which all ``conditions`` hold, if there are any."""
        if conditions:
            seat = " AND ".join(["s.game_id = g.game_id", *conditions])
            self.require(True, f"EXISTS (FROM players AS s WHERE {seat})", **values)

    def where(self) -> str:
        return f"WHERE {' AND '.join(self.conditions)}" if self.conditions else ""


def find_games(
    archive: Path,
    *,
    run: str | None = None,
    split: str | None = None,
    state: str | None = None,
    env: str | None = None,
    model: str | None = None,
    opponent: str | None = None,
    seat: int | None = None,
    result: str | None = None,
    update: int | None = None,
    invalid: bool = False,
    truncated: bool = False,
    min_moves: int | None = None,
    max_moves: int | None = None,
    text: str | None = None,
    sort: str = "latest",
    limit: int | None = 20,
    offset: int = 0,
) -> QueryResult:
    """Return games of an archive, one a row: id, run, split, number, env, seats, winner, …

    Args:
        archive: the DuckDB file.
        run: id of the run, or its beginning.
        split: ``train`` or ``eval``.
        state: how far they got.
        env: part of the environment's id.
        model: uid of a model that played.
        opponent: the opponent of ``model``, or of any checkpoint.
        seat: the seat of ``model``, or of any checkpoint.
        result: the result of ``model``, or of any checkpoint.
        update: only games with a step that this learner update trained on or dropped.
        invalid: only games with an invalid move.
        truncated: only games that were cut short, or with a completion that was.
        min_moves: fewest moves.
        max_moves: most moves.
        text: what a player saw, wrote or played somewhere in it, upper or lower case.
        sort: which come first; ``tokens``: those with most sampled tokens.
        limit: at most so many; ``None``: all.
        offset: leave out so many before.

    Raises:
        ArchiveError: there is no archive.
        ConfigError: a filter has a value that it does not know.
    """
    for name, value, known in (
        ("split", split, Split),
        ("state", state, State),
        ("result", result, Result),
        ("sort", sort, Sort),
    ):
        if value is not None and value not in get_args(known):
            raise ConfigError(f"{name}={value!r}: expected one of {', '.join(get_args(known))}")
    wanted = _Filter(values={"limit": limit, "offset": offset})
    wanted.require(run is not None, "starts_with(g.run_id, $run)", run=run)
    wanted.require(split is not None, "g.split = $split", split=split)
    wanted.require(state is not None, "g.state = $state", state=state)
    wanted.require(env is not None, "contains(lower(g.env_id), lower($env))", env=env)
    wanted.require(model is not None, "list_contains(g.models, $model)", model=model)
    wanted.require(min_moves is not None, "g.num_turns >= $min_moves", min_moves=min_moves)
    wanted.require(max_moves is not None, "g.num_turns <= $max_moves", max_moves=max_moves)
    wanted.require(
        update is not None,
        "g.game_id IN (SELECT game_id FROM steps WHERE step_id IN "
        "(SELECT step_id FROM update_steps WHERE update = $update AND starts_with(run_id, $update_run)))",
        update=update,
        update_run=run or "",
    )
    wanted.require(
        invalid,
        "(g.invalid_seat IS NOT NULL OR "
        "EXISTS (FROM seats AS s WHERE s.game_id = g.game_id AND s.invalid_moves > 0))",
    )
    wanted.require(
        truncated,
        "(g.reason = 'truncated' OR "
        "g.game_id IN (SELECT game_id FROM turns AS t WHERE t.finish_reason = 'length'))",
    )
    wanted.require(
        text is not None,
        "g.game_id IN (SELECT game_id FROM turns AS t WHERE contains(lower(t.completion), lower($text)) "
        "OR contains(lower(t.observation), lower($text)) "
        "UNION ALL SELECT game_id FROM actions AS a WHERE contains(lower(a.action), lower($text)))",
        text=text,
    )
    of_seat = {
        "s.result = $result": result,
        "s.seat = $seat": seat,
        "list_contains(string_split(s.opponent, ', '), $opponent)": opponent,
    }
    asked = {condition: value for condition, value in of_seat.items() if value is not None}
    if asked:
        who = "s.kind = 'checkpoint'" if model is None else "s.model_uid = $model"
        names = {condition: condition.rpartition("$")[2].rstrip(")") for condition in asked}
        wanted.require_seat([*asked, who], **{names[condition]: value for condition, value in asked.items()})
    found = (
        f"WITH players AS ({_PLAYERS}) "
        "SELECT g.game_id AS game, g.run_id AS run, g.split, g.game_index AS number, g.env_id AS env, "
        "array_to_string(g.models, ' – ') AS seats, "
        "CASE WHEN g.state <> 'finished' THEN g.state ELSE coalesce(g.winner, 'nobody') END AS winner, "
        "g.reason, g.num_turns AS moves, {tokens} AS tokens, "
        f"coalesce(g.ended_at, g.started_at) AS ended FROM games AS g {wanted.where()} "
        f"ORDER BY {_ORDER[sort]} LIMIT $limit OFFSET $offset"
    )
    if sort != "tokens":  # then the tokens of the games found are enough
        found = (
            f"WITH found AS MATERIALIZED ({found.format(tokens='NULL')}), sampled AS ("
            "SELECT game_id, sum(completion_tokens) AS tokens FROM trajectories "
            "WHERE game_id IN (SELECT game FROM found) GROUP BY game_id) "
            "SELECT f.* REPLACE (t.tokens AS tokens) FROM found AS f "
            f"LEFT JOIN sampled AS t ON t.game_id = f.game ORDER BY {_ORDER[sort]}"
        )
    return query(archive, found.format(tokens=_TOKENS), wanted.values)


@dataclass(frozen=True)
class Game:
    """One game."""

    archive: Path = field(repr=False)
    """The DuckDB file it is read from."""
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
    def turns(self) -> Sequence[Move]:
        """Its moves in order: observation, completion, tokens, log-probabilities, action, rewards."""
        return self.transcript.moves

    def show(self, *, tokens: bool = False, prompts: bool = False) -> None:
        """Print the game move by move.

        Args:
            tokens: each sampled token with its log-probability in nats.
            prompts: also what the engine was given, word for word.
        """
        from rich.console import Console

        Console(highlight=False).print(
            shown_game(self.archive, self.transcript, tokens=tokens, prompts=prompts)
        )


def game_list(archive: Path, found: QueryResult) -> list[Game]:
    """Return rows of :func:`find_games` as objects."""
    return [Game(archive, *row) for row in found.rows]  # columns in the order of the fields


def shown_game(
    archive: Path, transcript: Transcript, *, tokens: bool = False, prompts: bool = False
) -> "RenderableType":
    """Return a transcript ready to print with Rich; see :meth:`Game.show`."""
    from unstable_stream.views.game_text import render

    return render(transcript, texts=_token_texts(archive, transcript) if tokens else None, prompts=prompts)


def _token_texts(archive: Path, transcript: Transcript) -> dict[int, Sequence[str]]:
    """Return the tokens' texts by game turn: of checkpoints' moves, if their tokenizer is on this machine."""
    from unstable_stream.views.tokens import tokens_of

    tokens, with_texts = tokens_of(archive, transcript)
    return {turn: [token.text for token in each] for turn, each in tokens.items()} if with_texts else {}
