"""Trace the causes and the effects of something, in one walk over the archive in both directions.

A *node* is a run, checkpoint, update, step, trajectory, game or rating. Relations lead from a node to its
causes (*because*) and to its effects (*led to*): :mod:`unstable_stream.history.hindsight.relations`. A walk
goes hop by hop, with one query for all nodes of a kind. So its time grows with the number of hops and hardly
with the number of nodes. There are no indexes: each query reads only the few columns it needs and, where the
games of the nodes are known, only the rows that are stored near them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from unstable_stream.archive.dropping import dropped_error, dropped_runs, find_archived_run
from unstable_stream.archive.opening import open_archive
from unstable_stream.archive.store import Connection
from unstable_stream.errors import ArchiveError
from unstable_stream.events.run_ids import LATEST
from unstable_stream.history.hindsight.relations import DESCRIPTIONS, RELATIONS, SUMMARIES
from unstable_stream.log.stores.archive_address import ArchiveAddress

_NAMED = 8
_ALL_GAMES: Final = (0, 2**63 - 1)


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
        run: look only in this run; see :func:`find_archived_run`.

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
        if rest == LATEST:
            rest = find_archived_run(connection, rest)
        if rest.startswith("update:"):
            found = _updates(connection, rest.removeprefix("update:"), runs)
        else:
            found = _by_id(connection, rest, runs, all_runs=not run)
        if not found and (error := dropped_error(connection, rest)):
            raise error
        were_dropped = dropped_runs(path) if not found else ()
    exact = [key for key in found if key.id == rest]
    if len(exact) == 1 or len(found) == 1:
        return (exact or found)[0]
    of_run = f" of run {run!r}" if run else ""
    if not found:
        gone = _some([run.run_id for run in were_dropped])
        dropped = f"Dropped from it, with all that had ids in them: {gone}. " if gone else ""
        raise ArchiveError(
            f"nothing{of_run} has an id that starts with {rest!r}: looked through the steps, trajectories, "
            f"games, checkpoints, updates, ratings, runs and all other events of {path}. "
            f"{dropped}List games: unstable-stream games"
        )
    names = _some([_as_argument(key) for key in found])
    raise ArchiveError(
        f"several things{of_run} have an id that starts with {rest!r}: {names}. Name one of these."
    )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")


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
    return [find_archived_run(connection, wanted)]


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


_FIND: Final = """
    SELECT 'game', run_id, game_id FROM game_starts WHERE starts_with(game_id, $1)
    UNION SELECT 'game', run_id, game_id FROM game_outcomes WHERE starts_with(game_id, $1)
    UNION SELECT 'checkpoint', run_id, model_uid FROM checkpoints WHERE starts_with(model_uid, $1)
    UNION SELECT 'run', run_id, run_id FROM runs WHERE starts_with(run_id, $1) OR name = $1
    UNION SELECT kind, run_id, CASE kind
            WHEN 'run' THEN run_id
            WHEN 'game' THEN value->>'$.game_id'
            WHEN 'checkpoint' THEN value->>'$.model_uid'
            WHEN 'update' THEN concat_ws('/', value->>'$.model', value->>'$.update')
            ELSE event_id
        END
        FROM (
            SELECT *, CASE
                WHEN type IN ('step', 'trajectory', 'rating', 'checkpoint') THEN type
                WHEN type IN ('game-started', 'game-outcome', 'game-abandoned') THEN 'game'
                WHEN type IN ('run-started', 'run-resumed', 'run-finished') THEN 'run'
                WHEN type = 'learner-update' THEN 'update'
                ELSE 'event'
            END AS kind
            FROM events WHERE event_id >= $1 AND starts_with(event_id, $1)
        )
    ORDER BY ALL LIMIT 100
"""
"""Nodes by the beginning of an id, of an event that describes them or of the event that is one."""


def _by_id(connection: Connection, prefix: str, runs: Sequence[str], *, all_runs: bool) -> list[NodeKey]:
    if not prefix:
        raise ArchiveError("an empty id names nothing; give the beginning of one")
    found = [NodeKey(*row) for row in _rows(connection, _FIND, [prefix])]
    wanted = [key for key in found if all_runs or key.run_id in runs]
    # A full uid of a checkpoint wins over longer uids that begin with it.
    exact = [key for key in wanted if key.id == prefix]
    return exact or wanted


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
        _describe(connection, [nodes[root]])
        for direction in Direction:
            here = [nodes[root]]
            walked: set[NodeKey] = set()
            for _ in range(depth if direction is Direction.BECAUSE or ahead is None else ahead):
                walked.update(node.key for node in here)
                reached = _hop(connection, here, direction, most)
                new = {key: node for key, node in reached.items() if key not in nodes}
                nodes |= new
                _describe(connection, new.values())
                here = [nodes[key] for key in reached if key not in walked]
        summed = SUMMARIES.get(root.kind)
        summary = _answer(connection, summed, root.run_id, [nodes[root]])[0] if summed else {}
        return Provenance(root, nodes, summary)


def _groups(nodes: Iterable[Node]) -> dict[tuple[str, str], list[Node]]:
    groups: dict[tuple[str, str], list[Node]] = {}
    for node in nodes:
        groups.setdefault((node.key.kind, node.key.run_id), []).append(node)
    return groups


def _answer(
    connection: Connection, sql: str, run_id: str, nodes: Sequence[Node], **others: object
) -> list[dict[str, Any]]:
    """Answer a statement of :mod:`unstable_stream.history.hindsight.relations`; ``Any``: as in
    :attr:`Node.facts`.
    """
    games = [node.game_index for node in nodes if node.game_index is not None]
    first_game, last_game = (min(games), max(games)) if len(games) == len(nodes) else _ALL_GAMES
    parameters = others | {
        "run": run_id,
        "ids": [node.key.id for node in nodes],
        "first_game": first_game,
        "last_game": last_game,
    }
    result = connection.execute(sql, {name: value for name, value in parameters.items() if f"${name}" in sql})
    columns = [column[0] for column in result.description or []]
    return [dict(zip(columns, row, strict=True)) for row in result.fetchall()]


def _describe(connection: Connection, nodes: Iterable[Node]) -> None:
    for (kind, run_id), group in _groups(nodes).items():
        known = {node.key.id: node for node in group}
        for facts in _answer(connection, DESCRIPTIONS[kind], run_id, group):
            node = known[str(facts.pop("id"))]
            node.facts = facts
            node.game_index = facts.get("game_index")


def _hop(
    connection: Connection, nodes: Sequence[Node], direction: Direction, most: int | None
) -> dict[NodeKey, Node]:
    """Link the nodes to those one hop away; return these, with what is known of their games."""
    reached: dict[NodeKey, Node] = {}
    for (kind, run_id), group in _groups(nodes).items():
        for relation in RELATIONS[direction].get(kind, ()):
            found: dict[str, list[dict[str, Any]]] = {}
            for row in _answer(connection, relation.query(), run_id, group, most=most):
                found.setdefault(str(row["parent"]), []).append(row)
            for node in group:
                rows = found.get(node.key.id, [])
                if not rows:
                    continue
                keys = [NodeKey(relation.kind, row["run_id"], str(row["id"])) for row in rows]
                ends = [End(key, row["note"]) for key, row in zip(keys, rows, strict=True)]
                node.links.append(Link(direction, relation.words, rows[0]["total"], ends))
                game = node.game_index if relation.of_same_game else None
                reached.update((key, Node(key, game_index=game)) for key in keys)
    return reached
