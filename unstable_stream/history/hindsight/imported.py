"""Games that were recorded elsewhere, as events: rows of any table, and a mapping of their columns to ours.

A row is a move, or holds a list of them: of a whole game, or of one seat of it. A column may be a path,
``agent.model_name``, also through text that is JSON. What belongs to a seat (its reward, model, kind, role)
may stand in the row of the seat, or for all seats in a list or an object by seat.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec

from unstable_stream.errors import ConfigError, did_you_mean
from unstable_stream.events import IMPORTED, GameStarted, Seat, event_id, game_id, storable_text
from unstable_stream.games.environments import StepResult
from unstable_stream.games.play import GameEnd, GameLog, PlayedGame, game_events
from unstable_stream.games.players import Move, SampledTokens, TurnContext

_OF_SEATS: Final = {
    "model": str, "kind": str, "policy_version": int, "role": str, "team": int, "reward": float
}  # fmt: skip
_OF_GAMES: Final = {
    "game": str, "env_id": str, "seed": int, "reason": str, "reason_text": str, "invalid_seat": int
}  # fmt: skip
_OF_MOVES: Final = {
    "seat": int, "action": str, "valid": bool, "observation": str, "prompt": str, "completion": str,
    "finish_reason": str, "temperature": float, "prompt_token_ids": tuple, "completion_token_ids": tuple,
    "logprobs": tuple, "time": object,
}  # fmt: skip
_KINDS: Final[Mapping[str, Any]] = {**_OF_SEATS, **_OF_GAMES, **_OF_MOVES, "turns": list}
"""The names that can be mapped, and their types."""
_REQUIRED: Final = ("env_id", "seat", "action", "reward")
_REASONS: Final = ("win", "draw", "invalid-move", "truncated")
_PLAYERS: Final = ("checkpoint", "adapter", "model", "openai", "scripted", "human")
_RANGES: Final = {
    "seed": range(-(2**63), 2**63), "seat": range(1000), "invalid_seat": range(1000), "team": range(2**31),
    "policy_version": range(2**31),
}  # fmt: skip
"""Of whole numbers: what events and the archive's columns can hold, and more seats than any game has."""
_GAME_MASTER: Final = -1


class GameMapping(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The columns of a table that hold what is recorded: a TOML file."""

    columns: dict[str, str]
    """Our name to a column."""
    constants: dict[str, Any] = {}
    """Our name to a value of all rows."""
    moves: dict[str, Any] = {}
    """Column to value of those entries of ``turns`` that are moves; the others are what the seat is shown."""


def load_mapping(tree: Mapping[str, Any], origin: str) -> GameMapping:
    """Return a mapping that names what is needed.

    Raises:
        ConfigError: it does not, or names what is not known; says what.
    """
    try:
        mapping = msgspec.convert(tree, GameMapping)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{origin}: {error}; expected tables [columns], [constants] and [moves]") from error
    named = {*mapping.columns, *mapping.constants}
    if unknown := sorted(named - _KINDS.keys()):
        hint = did_you_mean(unknown[0], _KINDS, f"it can be {', '.join(_KINDS)}")
        raise ConfigError(f"{origin}: nothing is called {unknown[0]!r}; {hint}")
    if missing := [name for name in _REQUIRED if name not in named]:
        raise ConfigError(f"{origin}: no column is named for {', '.join(missing)}")
    if not named & {"game", "turns"}:
        raise ConfigError(f"{origin}: no column is named for game: which rows are of one game?")
    return mapping


class _TableRow(NamedTuple):
    """A row of the table, with the tables in which a value is looked for."""

    where: str
    tables: tuple[Mapping[str, Any], ...]


@dataclass
class _TableGame:
    values: dict[str, Any]
    seats: dict[str, dict[int, Any]] = field(default_factory=dict)
    """By name, by seat."""
    moves: list[tuple[Any, dict[str, Any]]] = field(default_factory=list)
    """Each with what it is sorted by."""


def imported_games(
    rows: Iterable[Mapping[str, Any]], mapping: GameMapping, run_id: str, now_ms: int
) -> Iterator[tuple[GameStarted, PlayedGame]]:
    """Yield the games of a table as events of a run, in the order in which they begin there.

    Raises:
        ConfigError: a column is missing, or a value is not what it should be; names the row.
    """
    games: dict[str, _TableGame] = {}
    for number, row in enumerate(rows, 1):
        _add(games, mapping, _TableRow(f"row {number}", (row,)), number)
    if not games:
        raise ConfigError("there is no row in it")
    for index, (name, game) in enumerate(games.items()):
        yield _played(f"game {name}", game, run_id, index, now_ms)


def _add(games: dict[str, _TableGame], mapping: GameMapping, row: _TableRow, number: int) -> None:
    """Take in a row."""
    of_game = {name: _value(mapping, name, row) for name in _OF_GAMES}
    game = games.setdefault(of_game["game"] or str(number), _TableGame(of_game))
    if game.values["env_id"] != of_game["env_id"]:
        raise ConfigError(f"{row.where}: env_id is {of_game['env_id']!r}, and was {game.values['env_id']!r}")
    game.values |= {name: value for name, value in of_game.items() if game.values[name] is None}
    turns = _structure(_value(mapping, "turns", row))
    if turns is None:
        entries: Sequence[tuple[Any, Any]] = [(None, {})]
    elif isinstance(turns, Mapping | list):
        entries = list(turns.items()) if isinstance(turns, Mapping) else [(None, each) for each in turns]
    else:
        raise ConfigError(f"{row.where}: turns is {turns!r:.80}; expected a list, or an object by time")
    shown: list[str] = []
    for place, (key, given) in enumerate(entries):
        entry = _structure(given)
        if any(_at(entry, column) != (True, wanted) for column, wanted in mapping.moves.items()):
            found, text = _at(entry, mapping.columns.get("observation", ""))
            shown += [_shown(text)] if found and text else []
            continue
        inner = _TableRow(row.where, (entry, *row.tables))
        move = {name: _value(mapping, name, inner) for name in _OF_MOVES}
        if mapping.moves:
            move["observation"], shown = "\n".join(shown), []
        time = key if move["time"] is None else move["time"]
        if time is None:
            time = place if turns is not None else number
        game.moves.append((_order(time), move))
        for name, kind in _OF_SEATS.items():
            _take(game, name, kind, _raw(mapping, name, inner), move["seat"], row.where)


def _take(game: _TableGame, name: str, kind: Any, value: Any, seat: int, where: str) -> None:
    """Take in what belongs to one seat, or to all of them."""
    given = _structure(value) if name == "reward" or not isinstance(value, str) else value
    by_seat = given if isinstance(given, Mapping) else {seat: given}
    if isinstance(given, list):
        by_seat = dict(enumerate(given))
    for number, each in by_seat.items():
        if each is not None:
            game.seats.setdefault(name, {})[_as(int, number, "seat", where)] = _as(kind, each, name, where)


def _played(
    where: str, game: _TableGame, run_id: str, index: int, now_ms: int
) -> tuple[GameStarted, PlayedGame]:
    values, of = game.values, {name: game.seats.get(name, {}) for name in _OF_SEATS}
    if not game.moves:
        raise ConfigError(f"{where} has no move")
    rewards = dict(sorted(of["reward"].items()))
    count = 1 + max([*rewards, *(move["seat"] for _, move in game.moves)])
    if missing := sorted(set(range(count)) - rewards.keys()):
        raise ConfigError(f"{where}: no reward for seat {', '.join(map(str, missing[:5]))}")
    if (values["invalid_seat"] or 0) >= count:
        raise ConfigError(f"{where}: invalid_seat is {values['invalid_seat']}, of {count} seats")
    named = game_id(run_id, IMPORTED, index)
    started = GameStarted(
        event_id=event_id(run_id, "game-started", IMPORTED, index),
        run_id=run_id,
        occurred_at_ms=now_ms,
        game_id=named,
        game_index=index,
        split=IMPORTED,
        env_id=values["env_id"],
        seed=values["seed"] or 0,
        seats=tuple(
            Seat(
                seat=seat,
                model_uid=of["model"].get(seat, "unknown"),
                kind=of["kind"].get(seat, "model"),
                policy_version=of["policy_version"].get(seat),
                team=of["team"].get(seat),
            )
            for seat in range(count)
        ),
    )
    log = GameLog(count)
    for _, move in sorted(game.moves, key=lambda each: (each[0], each[1]["seat"])):
        try:
            _make(log, started, move)
        except (TypeError, ValueError, OverflowError) as error:
            raise ConfigError(f"{where}, move {len(log.actions)}: tokens or logprobs: {error}") from error
    reason = values["reason"]
    drawn = len(set(rewards.values())) == 1 and max(rewards.values()) <= 0
    verdict = GameEnd(
        reason if reason in _REASONS else "draw" if drawn else "win",
        values["reason_text"] or (reason if reason not in _REASONS else "") or "",
        rewards,
        values["invalid_seat"],
        of["role"],
    )
    return started, game_events(started, verdict, log, now_ms, 0.0)


def _make(log: GameLog, started: GameStarted, move: Mapping[str, Any]) -> None:
    """Take in a move; one of which neither what was seen nor what was written is known is an action only."""
    seat, sampled = move["seat"], None
    tokens, logprobs = move["completion_token_ids"] or (), move["logprobs"] or ()
    if not all(type(each) is int and each >= 0 for each in (*tokens, *(move["prompt_token_ids"] or ()))):
        raise ValueError("a token that is no whole number from 0")
    if len(tokens) != len(logprobs):
        raise ValueError(
            f"found {len(tokens)} completion_token_ids and {len(logprobs)} logprobs, expected equally many"
        )
    if move["observation"] is not None or move["completion"] is not None:
        sampled = SampledTokens(
            prompt=move["prompt"] or "",
            prompt_token_ids=move["prompt_token_ids"] or (),
            completion=move["action"] if move["completion"] is None else move["completion"],
            completion_token_ids=tokens,
            logprobs=logprobs,
            finish_reason=move["finish_reason"] or "stop",
            policy_version=started.seats[seat].policy_version,
            temperature=1.0 if move["temperature"] is None else move["temperature"],
        )
    turn = TurnContext(
        env_id=started.env_id,
        seat=seat,
        num_players=len(started.seats),
        turn_index=log.turns[seat],
        game_turn=len(log.actions),
        seed=0,
        observation=move["observation"] or "",
    )
    valid = move["valid"] is not False
    log.add(turn, Move(move["action"], {}, sampled, move["finish_reason"]), StepResult(False, valid), 0.0)


def _raw(mapping: GameMapping, name: str, row: _TableRow) -> Any:
    """Return what a row has under one of our names; ``None``: nothing is named. ``Any``: JSON."""
    if name in mapping.constants:
        return mapping.constants[name]
    column = mapping.columns.get(name)
    if column is None:
        return None
    for table in row.tables:
        found, value = _at(table, column)
        if found:
            return value
    there = ", ".join(dict.fromkeys(key for table in row.tables for key in table))
    raise ConfigError(
        f"{row.where} has no column {column!r}, which the mapping names for {name}; it has {there}"
    )


def _value(mapping: GameMapping, name: str, row: _TableRow) -> Any:
    """Return a value as our type."""
    value, kind = _raw(mapping, name, row), _KINDS[name]
    if value is None:
        if name in _REQUIRED:
            raise ConfigError(f"{row.where}: {name} is empty")
        return None
    if name == "observation":
        return _shown(value)
    return value if kind in (list, object) else _as(kind, value, name, row.where)


def _as(kind: Any, value: Any, name: str, where: str) -> Any:
    """Return a value as a type, and such as can be recorded."""
    whole = _RANGES.get(name)
    try:
        made = _made(kind, value)
        if (whole is not None and made not in whole) or (name == "kind" and made not in _PLAYERS):
            raise ValueError
    except (TypeError, ValueError, OverflowError) as error:
        said = {int: "a whole number", float: "a number", bool: "true or false", tuple: "a list"}
        wanted = f"one of {', '.join(_PLAYERS)}" if name == "kind" else said.get(kind, "text")
        limits = f" from {whole.start} to {whole.stop - 1}" if whole is not None else ""
        raise ConfigError(f"{where}: {name} is {value!r:.80}; expected {wanted}{limits}") from error
    return made


def _made(kind: Any, value: Any) -> Any:
    """Return a value as a type; raises :class:`TypeError`, :class:`ValueError` or :class:`OverflowError`."""
    if kind is tuple:
        value = _structure(value)
        if not isinstance(value, list):
            raise TypeError
    if kind in (bool, int) and isinstance(value, bool) != (kind is bool):
        raise TypeError
    made = kind(value)
    if (kind is float and not math.isfinite(made)) or (
        kind is int and isinstance(value, float) and made != value
    ):
        raise ValueError
    return storable_text(made) if kind is str else made


def _order(time: Any) -> tuple[bool, float, str]:
    """Return what sorts moves by a time, or a place: numbers as such, also where they are text."""
    try:
        number = float(time)
    except (TypeError, ValueError, OverflowError):
        return True, 0.0, str(time)
    return (False, number, "") if math.isfinite(number) else (True, 0.0, str(time))


def _shown(value: Any) -> str:
    """Return an observation as text; TextArena records some as messages, each with its sender."""
    messages = _structure(value)
    if isinstance(messages, list) and all(isinstance(each, list) and len(each) > 1 for each in messages):
        lines = [
            f"[{'GAME' if sender == _GAME_MASTER else f'Player {sender}'}] {text}"
            for sender, text, *_ in messages
        ]
        return storable_text("\n".join(lines))
    return storable_text(value if isinstance(value, str) else msgspec.json.encode(value).decode())


def _at(table: Any, column: str) -> tuple[bool, Any]:
    """Return whether a table has a column or a path, and its value. ``Any``: JSON."""
    if isinstance(table, Mapping) and column in table:
        return True, table[column]
    first, dot, rest = column.partition(".")
    if not dot or not isinstance(table, Mapping) or first not in table:
        return False, None
    return _at(_structure(table[first]), rest)


def _structure(value: Any) -> Any:
    """Return what JSON in a text means; anything else as it is."""
    if isinstance(value, str) and value[:1] in ("[", "{"):
        try:
            return msgspec.json.decode(value)
        except (ValueError, RecursionError):
            return value
    return value
