"""The causes of something and its effects, as a graph to click through."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from unstable_stream.api.why import find_why
from unstable_stream.archive import query
from unstable_stream.errors import ConfigError, RunError
from unstable_stream.history.hindsight.node_words import in_words
from unstable_stream.history.hindsight.rederive import advantages
from unstable_stream.history.hindsight.why import Direction, NodeKey, Provenance
from unstable_stream.history.views.written import cell_text, number
from unstable_stream.ui.web.site import Shelf, Site, page

_WIDTH: Final = 216
_HEIGHT: Final = 62
_GAP_X: Final = 48
_GAP_Y: Final = 12
_MOST: Final = 4
_MOST_BEYOND: Final = 2
"""Nodes drawn of each link of the root, and of each link of others; the lists below the graph have more."""
_SHOWN_WORDS: Final = 31
_WEIGHED: Final = 2
"""Updates whose weights are computed again for one page."""
_SHOWN_ID: Final = 22


@dataclass(frozen=True, slots=True)
class _Box:
    """A node, where it is drawn."""

    key: NodeKey
    address: str
    name: str
    words: Sequence[str]
    x: int
    y: int

    @property
    def lines(self) -> list[str]:
        """Its words, as far as they fit."""
        return [f"{line[: _SHOWN_WORDS - 1]}…" if len(line) > _SHOWN_WORDS else line for line in self.words]


@dataclass(frozen=True, slots=True)
class _Arrow:
    """A relation between two drawn nodes, from cause to effect."""

    path: str
    says: str


@dataclass(frozen=True, slots=True)
class _Graph:
    width: int
    height: int
    boxes: Sequence[_Box]
    arrows: Sequence[_Arrow]
    root: NodeKey


def show(site: Site, shelf: Shelf, request: Request) -> Response:
    """Return the page; without ``of``, one to name something on."""
    wanted = request.query_params.get("of", "").strip()
    hops = request.query_params.get("hops", "")
    if hops not in ("", "1", "2", "3", "4"):
        raise ConfigError(f"hops={hops!r}: expected 1 to 4")
    found = graph = None
    starts = _Starts() if wanted else _starts(shelf, request.query_params.get("run", ""))
    words: Callable[[NodeKey], Sequence[str]] = lambda key: ()  # noqa: E731  # until there is something to say
    if wanted:
        with shelf.reading():
            found = find_why(shelf.place, wanted, depth=int(hops) if hops else None, limit=20).found
        nodes, weights = found.nodes, _weights(shelf, found)
        words = lambda key: in_words(nodes[key], weights.get(key.id)) if key in nodes else ()  # noqa: E731
        graph = _draw(shelf, found, words)
    return page(
        "why.html.jinja",
        site,
        shelf,
        wanted=wanted,
        hops=hops,
        found=found,
        root=found.nodes[found.root] if found else None,
        graph=graph,
        starts=starts,
        directions=((Direction.BECAUSE, "Because of"), (Direction.LED_TO, "Led to")),
        address=lambda key: _address(shelf, key),
        named=lambda run, kind, id_: _address(shelf, NodeKey(kind, run, id_)),
        facts=_facts,
        words=words,
    )


@dataclass(frozen=True, slots=True)
class _Starts:
    """The places of one run from which a walk may begin."""

    run: str = ""
    runs: Sequence[Mapping[str, Any]] = ()
    """All of the place. ``Any``: DuckDB's values."""
    nodes: Sequence[NodeKey] = ()
    updates: Sequence[Mapping[str, Any]] = ()
    """The latest, with their checkpoints."""


_RUNS: Final = "SELECT run_id, name FROM runs ORDER BY trains DESC, started_at DESC, run_id"
_UPDATES: Final = """
    SELECT run_id, concat_ws('/', model, "update") AS id, model_uid, trained_steps, dropped_steps, loss,
        occurred_at
    FROM updates WHERE run_id = $1 ORDER BY "update" DESC, model LIMIT 10
"""
_STARTS: Final = """
    WITH made AS (FROM updates WHERE run_id = $1 ORDER BY "update" DESC LIMIT 1),
    finished AS (FROM game_outcomes WHERE run_id = $1 ORDER BY finished_at DESC, game_id LIMIT 1)
    SELECT run_id, 'update' AS kind, concat_ws('/', model, "update") AS id FROM made
    UNION ALL SELECT run_id, 'checkpoint', model_uid FROM made WHERE model_uid IS NOT NULL
    UNION ALL (SELECT s.run_id, 'step', s.step_id FROM update_steps AS s
        JOIN made AS m ON s.run_id = m.run_id AND s."update" = m."update" WHERE s.fate = 'trained'
        ORDER BY s.step_id LIMIT 1)
    UNION ALL SELECT run_id, 'game', game_id FROM finished
"""


def _starts(shelf: Shelf, run: str) -> _Starts:
    """Return starts in a run, by default the newest: its latest updates with checkpoints, a step, a game."""
    if not shelf.place.has_archive:
        return _Starts()
    with shelf.reading() as archive:
        runs = query(archive, _RUNS).dicts()
        run = run or (runs[0]["run_id"] if runs else "")
        if runs and run not in {each["run_id"] for each in runs}:
            raise RunError(f"run={run!r}: {shelf.place.root} has no such run; choose one in the list")
        nodes = [NodeKey(kind, of, found) for of, kind, found in query(archive, _STARTS, [run]).rows]
        return _Starts(run, runs, nodes, query(archive, _UPDATES, [run]).dicts())


def _weights(shelf: Shelf, found: Provenance) -> Mapping[str, float]:
    """Return the weights of the steps near the root, by step; of a few updates: each is computed again."""
    updates = {
        (update.run_id, update.id)
        for key, node in found.nodes.items()
        for link in node.links
        for end in link.ends
        if "trained on" in link.relation
        for update in [key if key.kind == "update" else end.key]
    }
    weights: dict[str, float] = {}
    for run, id_ in sorted(updates)[:_WEIGHED]:
        model, _, number = id_.rpartition("/")
        weights |= shelf.remember(
            ("advantages", run, model or None, int(number)),
            partial(advantages, run_id=run, update=int(number), model=model or None),
        )
    return weights


def _address(shelf: Shelf, key: NodeKey) -> str:
    name = {
        "update": f"{key.run_id}:update:{key.id}",
        "checkpoint": f"{key.run_id}:{key.id}",
    }.get(key.kind, key.id)
    return shelf.href("why") + "?" + urlencode({"of": name})


def _facts(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what is known of a node, without lists of tokens. ``Any``: DuckDB's values."""
    return [
        (name.replace("_", " "), _written(value))
        for name, value in facts.items()
        if value is not None and not isinstance(value, list | dict)
    ]


def _written(value: Any) -> str:
    """``Any``: as in :func:`_facts`."""
    if isinstance(value, bool | str):
        return str(value)
    return number(value) if isinstance(value, int | float) else cell_text(value)


def _draw(shelf: Shelf, found: Provenance, words: Callable[[NodeKey], Sequence[str]]) -> _Graph:
    """Lay out causes to the left and effects to the right, a column for each hop."""
    columns: dict[NodeKey, int] = {found.root: 0}
    links: list[tuple[NodeKey, NodeKey, str]] = []
    for direction, step in ((Direction.BECAUSE, -1), (Direction.LED_TO, 1)):
        here = [found.root]
        while here:
            reached: list[NodeKey] = []
            for key in here:
                for link in found.nodes[key].links if key in found.nodes else ():
                    if link.direction is not direction:
                        continue
                    for end in link.ends[: _MOST if key == found.root else _MOST_BEYOND]:
                        pair = (end.key, key) if step < 0 else (key, end.key)
                        links.append((*pair, link.relation))
                        if end.key not in columns:
                            columns[end.key] = columns[key] + step
                            reached.append(end.key)
            here = reached
    stacks: dict[int, list[NodeKey]] = {}
    for key, column in columns.items():
        stacks.setdefault(column, []).append(key)
    first, highest = min(stacks), max(map(len, stacks.values()))
    boxes: dict[NodeKey, _Box] = {}
    for column, keys in stacks.items():
        x, above = (column - first) * (_WIDTH + _GAP_X), (highest - len(keys)) * (_HEIGHT + _GAP_Y) // 2
        for row, key in enumerate(keys):
            # Ids of games and steps differ at their beginning, those of runs at their end.
            short = f"…{key.id[1 - _SHOWN_ID :]}" if key.kind == "run" else f"{key.id[:8]}…"
            name = key.id if len(key.id) <= _SHOWN_ID else short
            boxes[key] = _Box(
                key, _address(shelf, key), name, words(key), x, above + row * (_HEIGHT + _GAP_Y)
            )
    arrows = [_arrow(boxes[cause], boxes[effect], says) for cause, effect, says in dict.fromkeys(links)]
    width = (max(stacks) - first + 1) * (_WIDTH + _GAP_X) - _GAP_X
    return _Graph(width, highest * (_HEIGHT + _GAP_Y), list(boxes.values()), arrows, found.root)


def _arrow(cause: _Box, effect: _Box, says: str) -> _Arrow:
    y, to_y = cause.y + _HEIGHT // 2, effect.y + _HEIGHT // 2
    if cause.x >= effect.x:  # around the left side
        x, to_x = cause.x, effect.x
        return _Arrow(f"M{x} {y}C{x - 40} {y} {to_x - 40} {to_y} {to_x} {to_y}", says)
    x, to_x = cause.x + _WIDTH, effect.x
    bend = max(30, abs(to_x - x) // 2)
    return _Arrow(f"M{x} {y}C{x + bend} {y} {to_x - bend} {to_y} {to_x} {to_y}", says)
