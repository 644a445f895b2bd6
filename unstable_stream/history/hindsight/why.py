"""Trace the causes and the effects of something, in one walk over the archive in both directions.

A *node* is a run, checkpoint, update, step, trajectory, game or rating. Relations lead from a node to its
causes (*because*) and to its effects (*led to*): :mod:`unstable_stream.history.hindsight.relations`. A walk
goes hop by hop, with one query for all nodes of a kind. So its time grows with the number of hops and hardly
with the number of nodes. There are no indexes: each query reads only the few columns it needs and, where the
games of the nodes are known, only the rows that are stored near them. The steps of an update are looked for
among the games of the policies before it, and everywhere if not all of them are there.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from unstable_stream.archive.dropping import DroppedRun, dropped_error, dropped_runs
from unstable_stream.archive.opening import open_archive
from unstable_stream.archive.store import Connection
from unstable_stream.errors import ArchiveError
from unstable_stream.events.run_ids import no_run
from unstable_stream.history.hindsight.relations import (
    DESCRIPTIONS,
    GAMES_OF_POLICIES,
    RELATIONS,
    SUMMARIES,
    Relation,
)
from unstable_stream.log.stores.archive_address import ArchiveAddress

_NAMED = 8
_ALL_GAMES: Final = (0, 2**63 - 1)
_POLICIES_BEFORE: Final = 8
"""An update is likely to have trained on moves of so many policies before it."""
_TRACED_SINCE: Final = 3
"""The first schema version of archives whose rows have numbers of records."""
_OF_EVENT = {
    "step": "step",
    "trajectory": "trajectory",
    "learner-update": "update",
    "checkpoint": "checkpoint",
    "game-started": "game",
    "game-outcome": "game",
    "game-abandoned": "game",
    "rating": "rating",
    "run-started": "run",
    "run-resumed": "run",
    "run-finished": "run",
}


class Direction(StrEnum):
    """The direction of a link."""

    BECAUSE = "because"
    LED_TO = "led-to"


class NodeKey(NamedTuple):
    """The name of a node; as text ``KIND:RUN:ID``."""

    kind: str
    run_id: str
    id: str
    """Id of a step, trajectory, game or rating; uid of a checkpoint; an update's number, or ``MODEL/NUMBER``;
    id of a run.
    """

    def __str__(self) -> str:
        return f"{self.kind}:{self.run_id}:{self.id}"


class End(NamedTuple):
    """The end of a link."""

    key: NodeKey
    note: str | None
    """A note about this pair of nodes, e.g. the reason why a step was dropped."""


@dataclass(frozen=True, slots=True)
class Link:
    """All nodes that one node has in one relation."""

    direction: Direction
    relation: str
    """Words that follow the node: ``trained on``."""
    total: int
    ends: Sequence[End]
    """The first ends, or all."""


@dataclass(slots=True)
class Node:
    """One thing and its recorded facts."""

    key: NodeKey
    facts: dict[str, Any] = field(default_factory=dict)
    """Facts by column name; empty if the archive knows the node only from other records. ``Any``: DuckDB's
    values.
    """
    game_index: int | None = None
    """Index of the game that it is, or is a part of; ``None``: of none, or not known."""
    likely_games: tuple[int, int] | None = field(default=None, compare=False)
    """The first and last index of games among which its own probably is."""
    links: list[Link] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Provenance:
    """The result of :func:`trace`."""

    root: NodeKey
    nodes: dict[NodeKey, Node]
    summary: dict[str, Any]
    """Counts of everything that the root was made of. ``Any``: as in :attr:`Node.facts`."""


def find_node(path: ArchiveAddress, wanted: str, *, run: str = "") -> NodeKey:
    """Return the node that ``wanted`` names.

    Args:
        path: the archive.
        wanted: an id, or its beginning, of a step, game, trajectory, run or any event; a checkpoint's uid;
            ``update:N``, or ``update:MODEL/N``; each with ``RUN:`` before it if need be.
        run: look only in the run with this id, this beginning of an id, or this name.

    Raises:
        RunError: no such run; lists what is there.
        ArchiveError: nothing has this name, or several things have it; the message lists the places or the
            things.
    """
    place, _, rest = wanted.rpartition(":")
    if place.rpartition(":")[2] == "update":
        place, rest = place.rpartition(":")[0], f"update:{rest}"
    elif place == "update":
        place, rest = "", wanted
    run = place or run
    with open_archive(path) as connection:
        runs = _runs(connection, run)
        if rest.startswith("update:"):
            found = _updates(connection, rest.removeprefix("update:"), runs)
        else:
            found = _by_id(connection, rest, runs, all_runs=not run)
        if not found and (dropped := dropped_error(connection, rest)):
            raise dropped
        were_dropped = dropped_runs(path) if not found else ()
    exact = [key for key in found if key.id == rest]
    if len(exact) == 1 or len(found) == 1:
        return (exact or found)[0]
    of_run = f" of run {run!r}" if run else ""
    if not found:
        raise ArchiveError(
            f"nothing{of_run} has an id that starts with {rest!r}: looked through the steps, trajectories, "
            f"games, checkpoints, updates, ratings, runs and all other events of {path}. "
            f"{_without(were_dropped)}List games: unstable-stream games"
        )
    names = ", ".join(map(_as_argument, found[:_NAMED])) + (", …" if len(found) > _NAMED else "")
    raise ArchiveError(
        f"several things{of_run} have an id that starts with {rest!r}: {names}. Name one of these."
    )


def _without(dropped: Sequence[DroppedRun]) -> str:
    """Return a sentence on runs of which nothing can be found any more; empty: there are none."""
    if not dropped:
        return ""
    names = ", ".join(run.run_id for run in dropped[:_NAMED]) + (", …" if len(dropped) > _NAMED else "")
    return f"Dropped from it, with all that had ids in them: {names}. "


def _as_argument(key: NodeKey) -> str:
    if key.kind == "update":
        return f"{key.run_id}:update:{key.id}"
    if key.kind == "checkpoint":
        return f"{key.run_id}:{key.id}"
    return f"{key.id} ({key.kind})"


def _rows(connection: Connection, sql: str, parameters: object) -> list[tuple[Any, ...]]:
    """``Any``: whatever Python value DuckDB makes of the column's type."""
    rows: list[tuple[Any, ...]] = connection.execute(sql, parameters).fetchall()
    return rows


def _runs(connection: Connection, wanted: str) -> list[str]:
    if not wanted:
        return [run for (run,) in _rows(connection, "SELECT run_id FROM runs ORDER BY run_id", [])]
    sql = (
        "SELECT run_id FROM runs WHERE starts_with(run_id, $1) OR name = $1 ORDER BY run_id = $1 DESC, run_id"
    )
    runs = [run for (run,) in _rows(connection, sql, [wanted])]
    if not runs:
        raise dropped_error(connection, wanted) or no_run(wanted, _runs(connection, ""), "this archive")
    return runs[:1] if runs[0] == wanted else runs


def _updates(connection: Connection, name: str, runs: Sequence[str]) -> list[NodeKey]:
    model, _, number = name.rpartition("/")
    if not number.isdecimal():
        raise ArchiveError(
            f"{name!r} is no number of an update; expected update:5, or RUN:update:5; in a run that trains "
            "several models, update:MODEL/5"
        )
    sql = """
        SELECT run_id, concat_ws('/', model, update) FROM updates
        WHERE update = $1 AND list_contains($2, run_id) AND ($3 = '' OR model = $3) ORDER BY ALL
    """
    return [NodeKey("update", *row) for row in _rows(connection, sql, [int(number), runs, model])]


def _by_id(connection: Connection, prefix: str, runs: Sequence[str], *, all_runs: bool) -> list[NodeKey]:
    found: list[NodeKey] = []
    sql = """
        SELECT 'game', run_id, game_id FROM game_starts WHERE starts_with(game_id, $1)
        UNION SELECT 'game', run_id, game_id FROM game_outcomes WHERE starts_with(game_id, $1)
        UNION SELECT 'checkpoint', run_id, model_uid FROM checkpoints WHERE starts_with(model_uid, $1)
        UNION SELECT 'run', run_id, run_id FROM runs WHERE starts_with(run_id, $1) OR name = $1
        ORDER BY ALL LIMIT 100
    """
    if not prefix:
        raise ArchiveError("an empty id names nothing; give the beginning of one")
    found += [NodeKey(*row) for row in _rows(connection, sql, [prefix])]
    events = """
        SELECT DISTINCT event_id, type, run_id, value FROM events
        WHERE event_id >= $1 AND starts_with(event_id, $1) ORDER BY event_id LIMIT 100
    """
    for event_id, kind, run_id, value in _rows(connection, events, [prefix]):
        found.append(_of_event(connection, event_id, kind, run_id, value))
    wanted = [key for key in dict.fromkeys(found) if all_runs or key.run_id in runs]
    # A full uid of a checkpoint wins over longer uids that begin with it.
    exact = [key for key in wanted if key.id == prefix]
    return exact or wanted


def _of_event(connection: Connection, event_id: str, kind: str, run_id: str, value: str) -> NodeKey:
    """Return the node that an event describes; an event that describes no node is a node itself."""
    node = _OF_EVENT.get(kind, "event")
    if node == "run":
        return NodeKey("run", run_id, run_id)
    if node in ("update", "checkpoint", "game"):
        name = {"update": "update", "checkpoint": "model_uid", "game": "game_id"}[node]
        model = "$.model" if node == "update" else "$.none"
        sql = "SELECT concat_ws('/', $1::JSON->>$2, $1::JSON->>$3)"
        ((id_,),) = _rows(connection, sql, [value, model, f"$.{name}"])
        return NodeKey(node, run_id, id_)
    return NodeKey(node, run_id, event_id)


def trace(
    path: ArchiveAddress, root: NodeKey, *, depth: int = 3, ahead: int | None = None, most: int | None = None
) -> Provenance:
    """Walk from ``root`` in both directions.

    Args:
        path: the archive.
        root: from :func:`find_node`.
        depth: hops to causes, and to effects.
        ahead: hops to effects, if they differ from ``depth``.
        most: the most ends kept of each link, although all are counted; ``None``: all.

    Raises:
        ArchiveError: the archive cannot be read.
    """
    nodes = {root: Node(root)}
    with open_archive(path) as connection:
        archive = _Archive(connection, _has_untraced_rows(connection))
        _describe(archive, [nodes[root]])
        for direction in Direction:
            here = [nodes[root]]
            walked: set[NodeKey] = set()
            for _ in range(depth if direction is Direction.BECAUSE or ahead is None else ahead):
                walked.update(node.key for node in here)
                reached = _hop(archive, here, direction, most)
                new = {key: node for key, node in reached.items() if key not in nodes}
                nodes |= new
                _describe(archive, new.values())
                here = [nodes[key] for key in reached if key not in walked]
        return Provenance(root, nodes, _summary(archive, nodes[root]))


def _groups(nodes: Iterable[Node]) -> dict[tuple[str, str], list[Node]]:
    groups: dict[tuple[str, str], list[Node]] = {}
    for node in nodes:
        groups.setdefault((node.key.kind, node.key.run_id), []).append(node)
    return groups


def _has_untraced_rows(connection: Connection) -> bool:
    ((version,),) = _rows(connection, "SELECT version FROM schema_version", [])
    if version < _TRACED_SINCE:
        return True
    ((untraced,),) = _rows(connection, "SELECT traced_from > 0 FROM schema_version", [])
    return bool(untraced)


class _Archive(NamedTuple):
    connection: Connection
    untraced: bool
    """Whether old rows have no number of the record that they were made from."""


def _answer(
    archive: _Archive,
    sql: str,
    run_id: str,
    nodes: Sequence[Node],
    games: tuple[int, int] | None = None,
    **others: object,
) -> Connection:
    """Answer a statement of :mod:`unstable_stream.history.hindsight.relations`.

    Args:
        games: the first and last index of those to look among, if not those that are known of the nodes.
    """
    first_game, last_game = games or _known_games(nodes)
    parameters = others | {
        "run": run_id,
        "ids": [node.key.id for node in nodes],
        "first_game": first_game,
        "last_game": last_game,
        "untraced": archive.untraced,
    }
    return archive.connection.execute(
        sql, {name: value for name, value in parameters.items() if f"${name}" in sql}
    )


def _known_games(nodes: Sequence[Node]) -> tuple[int, int]:
    games = [node.game_index for node in nodes if node.game_index is not None]
    return (min(games), max(games)) if len(games) == len(nodes) else _ALL_GAMES


def _likely_games(nodes: Sequence[Node]) -> tuple[int, int] | None:
    likely = [node.likely_games for node in nodes if node.likely_games is not None]
    if len(likely) < len(nodes):
        return None
    return min(first for first, _ in likely), max(last for _, last in likely)


def _games_before(archive: _Archive, run_id: str, updates: Sequence[Node]) -> tuple[int, int] | None:
    """Return the games among which those of the updates' steps probably are; ``None``: there is none."""
    numbers = [int(node.key.id.rpartition("/")[2]) for node in updates]
    policies = {"run": run_id, "oldest": min(numbers) - _POLICIES_BEFORE, "newest": max(numbers)}
    ((first, last),) = _rows(archive.connection, GAMES_OF_POLICIES, policies)
    return None if first is None else (first, last)


def _facts(
    archive: _Archive, sql: str, run_id: str, nodes: Sequence[Node], games: tuple[int, int] | None = None
) -> list[dict[str, Any]]:
    """``Any``: as in :attr:`Node.facts`."""
    result = _answer(archive, sql, run_id, nodes, games)
    columns = [column[0] for column in result.description or []]
    return [dict(zip(columns, row, strict=True)) for row in result.fetchall()]


def _describe(archive: _Archive, nodes: Iterable[Node]) -> None:
    for (kind, run_id), group in _groups(nodes).items():
        known = {node.key.id: node for node in group}
        likely = _likely_games(group)
        rows = _facts(archive, DESCRIPTIONS[kind], run_id, group, likely)
        if likely is not None and len(rows) < len(group):
            rows = _facts(archive, DESCRIPTIONS[kind], run_id, group)
        for facts in rows:
            node = known[str(facts.pop("id"))]
            node.facts = facts
            node.game_index = facts.get("game_index")


def _hop(
    archive: _Archive, nodes: Sequence[Node], direction: Direction, most: int | None
) -> dict[NodeKey, Node]:
    """Link the nodes to those one hop away; return these, with what is known of their games."""
    reached: dict[NodeKey, Node] = {}
    for (kind, run_id), group in _groups(nodes).items():
        trains = kind == "update" and direction is Direction.BECAUSE
        games_before = _games_before(archive, run_id, group) if trains else None
        for relation in RELATIONS[direction].get(kind, ()):
            rows = _answer(archive, relation.query(), run_id, group, most=most).fetchall()
            likely = games_before if relation.kind == "step" else None
            for node, total, ends in _ends(relation, group, rows):
                node.links.append(Link(direction, relation.words, total, ends))
                game = node.game_index if relation.of_same_game else None
                reached.update((end.key, Node(end.key, game_index=game, likely_games=likely)) for end in ends)
    return reached


def _ends(
    relation: Relation, nodes: Sequence[Node], rows: Iterable[tuple[Any, ...]]
) -> Iterable[tuple[Node, int, list[End]]]:
    """``Any``: as in :attr:`Node.facts`."""
    found: dict[str, tuple[int, list[End]]] = {}
    for parent, run_id, id_, note, total in rows:
        _, ends = found.setdefault(str(parent), (total, []))
        ends.append(End(NodeKey(relation.kind, run_id, str(id_)), note))
    for node in nodes:
        if node.key.id in found:
            yield node, *found[node.key.id]


def _summary(archive: _Archive, root: Node) -> dict[str, Any]:
    """``Any``: as in :attr:`Node.facts`."""
    if root.key.kind not in SUMMARIES:
        return {}
    sql, run_id = SUMMARIES[root.key.kind], root.key.run_id
    trained_on = sum(link.total for link in root.links if link.relation == "trained on")
    likely = _games_before(archive, run_id, [root]) if trained_on else None
    rows = _facts(archive, sql, run_id, [root], likely)
    if likely is not None and rows[0]["steps"] < trained_on:
        rows = _facts(archive, sql, run_id, [root])
    return rows[0] if rows else {}
