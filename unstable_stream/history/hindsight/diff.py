"""Find where two runs part: the first difference in the order of causes, and what followed from it.

A run is a loop: games are planned with the newest policy, their turns become steps, a batch of steps makes an
update, which makes the next policy. So what happened has a place in time, the policy version of a game or the
update before which a batch was drawn, and within one version a place in the order of causes, the layer. The
first difference by version, then by layer, comes from nothing that is recorded before it; the others may.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, NamedTuple

import msgspec

from unstable_stream.archive.read import held, query
from unstable_stream.errors import ConfigError
from unstable_stream.history.views.written import flattened
from unstable_stream.log.stores.archive_address import ArchiveAddress

_LONGEST: Final = 400
_AROUND: Final = 60
_NOT_COUNTED: Final = frozenset({"name", "log", "tracker", "trackers", "sweep", "terminal", "archive"})
"""Keys and sections of the configuration that name a run or say where it is told of."""

_GAMES: Final = """
WITH versions AS (
    SELECT split, game_index, coalesce(max(policy_version), 0) AS version
    FROM game_starts LEFT JOIN planned_seats USING (run_id, game_id, split)
    WHERE run_id IN ($run, $other) GROUP BY ALL
), games AS (
    SELECT game_id, split, game_index, (split = 'eval')::INTEGER AS k0, game_index AS k1, version
    FROM {table} AS g JOIN versions USING (split, game_index)
    WHERE run_id = $run AND if(split = 'train', game_index >= $from_game, $evals = 1) AND {there}
)
SELECT games.version, games.k0, games.k1, {keys}, {{values}} FROM games JOIN {rows} USING (game_id)
"""
_IN_BOTH: Final = """
(split, game_index) IN (SELECT (split, game_index) FROM game_outcomes WHERE run_id = $other)
"""
_AS_FAR: Final = """
game_index <= (SELECT max(game_index) FROM game_starts AS o WHERE o.run_id = $other AND o.split = g.split)
"""
_OF_UPDATES: Final = """
SELECT {column} - 1 AS version, {column} AS k0, 0 AS k1, 0 AS k2, 0 AS k3, {{values}}
FROM {table} WHERE run_id = $run AND {column} > $from_update
    AND {column} IN (SELECT {column} FROM {table} WHERE run_id = $other)
"""
_BATCHES: Final = """
SELECT u.update - 1 AS version, u.update AS k0, {keys}, {{values}}
FROM update_steps AS u JOIN steps AS s USING (step_id)
WHERE u.run_id = $run AND u.update > $from_update AND {where}
    AND u.update IN (SELECT update FROM updates WHERE run_id = $other)
"""
_MODELS: Final = "array_to_string(models, ' against ')"
_BEGAN: Final = """
if(o.position IS NULL, 'from the beginning', printf(
    'from move %s of the game with seed %s, after %s moves',
    o.position->>'$.turn', o.position->>'$.seed', o.position->>'$.moves'
))
"""
_METRICS: Final = """
to_json(map_from_entries(list_sort(list_filter(
    map_entries(metrics), lambda one: NOT regexp_full_match(one.key, '{timed}')
))))::VARCHAR
""".format(
    timed="buffer_size|finished_games|invalid_game_fraction|game_turns|legal_fraction|parsed_fraction|"
    "mirror_.*|fixed_.*"
)
"""Without those that tell of the games that happened to end before the update."""
_OF_RATINGS: Final = "(hash(env_id, model_uid) % 2147483647)::INTEGER AS k2, 0 AS k3"


class Layer(NamedTuple):
    """A kind of record, in the order of causes."""

    name: str
    value: str
    """SQL of what is compared, in the rows of its family."""
    means: str
    """The probable reason for a first difference here, in words."""


class Family(NamedTuple):
    """Records that are joined once for several layers."""

    rows: str
    """SQL of a run's rows: version, the four numbers of the key, the layers' values. ``$other`` is the run
    that it is compared with."""
    place: str
    """The meaning of a key, in words."""
    layers: tuple[Layer, ...]
    phase: int
    """Within a version, records of a lower phase come first. In a phase the key orders them, then the layer:
    a later move of a game follows from the earlier ones."""


def _of_games(rows: str, keys: str, table: str = "game_outcomes", there: str = _IN_BOTH) -> str:
    return _GAMES.format(table=table, there=there, rows=rows, keys=keys)


FAMILIES: Final = (
    Family(
        _OF_UPDATES.format(table="updates", column="update"),
        "update {k0}",
        (
            Layer(
                "packages", "computed_with::VARCHAR", "the learner computed with other packages or hardware"
            ),
        ),
        0,
    ),
    Family(
        _of_games("game_starts AS s", "0 AS k2, 0 AS k3", "game_starts", _AS_FAR),
        "{split} game {k1}",
        (
            Layer(
                "games planned",
                f"concat_ws(', ', env_id, 'seed ' || seed, {_MODELS}, 'of ' || evaluated_uid)",
                "which checkpoint is the newest when a game is planned is a matter of timing, where engines "
                "and learner run beside each other",
            ),
        ),
        1,
    ),
    Family(
        _of_games("game_outcomes AS o", "0 AS k2, 0 AS k3"),
        "{split} game {k1}",
        (
            Layer(
                "positions",
                _BEGAN,
                "which games have ended, to be played on from, when one is planned is a matter of timing",
            ),
        ),
        1,
    ),
    Family(
        _of_games("turns AS t", "game_turn AS k2, seat AS k3"),
        "{split} game {k1}, move {k2}, seat {k3}",
        (
            Layer("observations", "observation", "the environment does not follow its seed"),
            Layer("prompts", "prompt", "another template, or another version of it"),
            Layer("prompt tokens", "prompt_token_ids::VARCHAR", "another tokenizer"),
            Layer(
                "log-probabilities",
                "logprobs::VARCHAR",
                "the engine computed another distribution for the same tokens: other weights, another "
                "machine, or batches of another size",
            ),
            Layer(
                "sampled tokens",
                "concat(completion_token_ids::VARCHAR, ' ', completion)",
                "the engine drew other tokens; from the same distribution, if no log-probabilities differ "
                "before",
            ),
        ),
        2,
    ),
    Family(
        _of_games("actions AS t", "game_turn AS k2, seat AS k3"),
        "{split} game {k1}, move {k2}, seat {k3}",
        (
            Layer(
                "moves",
                "concat(action, if(valid, '', ' (refused)'))",
                "a scripted player, or the extraction of the answer, decided otherwise",
            ),
        ),
        2,
    ),
    Family(
        _of_games("game_outcomes AS o", "2147483647 AS k2, 0 AS k3"),
        "{split} game {k1}",
        (
            Layer(
                "results",
                "concat(o.reason, ' ', o.rewards::VARCHAR)",
                "the environment judged the same moves otherwise",
            ),
        ),
        2,
    ),
    Family(
        _of_games("steps AS s", "seat AS k2, turn_index AS k3"),
        "{split} game {k1}, seat {k2}, turn {k3}",
        (
            Layer("rewards", "raw_reward", "the environment rewarded otherwise"),
            Layer(
                "final rewards",
                "final_reward",
                "final transformations, or the order in which games ended: a baseline learns in that order",
            ),
            Layer("step rewards", "reward", "step transformations"),
        ),
        3,
    ),
    Family(
        _BATCHES.format(keys="s.game_index AS k1, s.seat AS k2, s.turn_index AS k3", where="true"),
        "update {k0}: game {k1}, seat {k2}, turn {k3}",
        (
            Layer(
                "draws of the buffer",
                "concat_ws(': ', u.fate, u.reason)",
                "which steps wait when a batch is drawn is a matter of timing; the draw follows the seed",
            ),
        ),
        4,
    ),
    Family(
        _BATCHES.format(keys="u.batch_position AS k1, 0 AS k2, 0 AS k3", where="u.batch_position >= 0"),
        "update {k0}, place {k1}",
        (
            Layer(
                "batches",
                "concat('game ', s.game_index, ', seat ', s.seat, ', turn ', s.turn_index)",
                "the same steps in another order",
            ),
        ),
        5,
    ),
    Family(
        _OF_UPDATES.format(table="updates", column="update"),
        "update {k0}",
        (
            Layer(
                "metrics of the update",
                _METRICS,
                "the learner computed otherwise from the same batch: other code, settings or numerics",
            ),
        ),
        6,
    ),
    Family(
        _OF_UPDATES.format(table="checkpoints", column="iteration"),
        "checkpoint {k0}",
        (Layer("weights", "sha256", "another initial policy, or another result of the same update"),),
        7,
    ),
    Family(
        _of_games("ratings AS r", _OF_RATINGS),
        "after {split} game {k1}",
        (
            Layer(
                "ratings",
                "printf('%s in %s: mu %.6f, sigma %.6f', model_uid, env_id, mu, sigma)",
                "another rating system, or the order in which games ended",
            ),
        ),
        8,
    ),
)
_ORDER: Final = tuple(layer for family in FAMILIES for layer in family.layers)
_KEY: Final = ("k0", "k1", "k2", "k3")


@dataclass(frozen=True, slots=True)
class LayerDiff:
    """One layer of two runs."""

    layer: str
    compared: int
    """Records of either run that the other should have, too."""
    differing: int
    version: int | None = None
    """The policy version of the first difference; ``None``: there is none, or it is older than the runs."""
    place: str | None = None
    """The first record that differs, in words."""
    one: str | None = None
    """Its value in the first run, cut to the first difference; ``None``: there is none."""
    other: str | None = None
    """The same of the second run."""
    follows: bool = False
    """Whether something that came before differs, too, from which this may follow."""


@dataclass(frozen=True, slots=True)
class RunDiff:
    """The result of comparing two runs."""

    one: str
    other: str
    layers: Sequence[LayerDiff]
    """In the order of causes."""
    first: LayerDiff | None
    """The first difference; ``None``: the runs are equal as far as both went."""
    reason: str
    """Its probable reason, in words."""
    from_update: int
    """The update after which they are compared, where both are branches of one history."""

    def sentences(self) -> list[str]:
        """Return the result in words, a line each."""
        since = f" after update {self.from_update}, where they part" if self.from_update else ""
        if self.first is None:
            return [f"{self.one} and {self.other} are equal{since}, as far as both went"]
        first = self.first
        return [
            f"First{since}: {first.layer}, {first.place}",
            f"  {self.one}: {first.one if first.one is not None else 'nothing'}",
            f"  {self.other}: {first.other if first.other is not None else 'nothing'}",
            f"Probably: {self.reason}",
        ]

    def to_json(self) -> bytes:
        """Return it as JSON."""
        return msgspec.json.format(msgspec.json.encode(asdict(self)), indent=2)


def diff_runs(archive: ArchiveAddress, one: str, other: str) -> RunDiff:
    """Compare two archived runs, layer by layer; of a fork and its parent, what came after the fork.

    Raises:
        ConfigError: it is one run twice.
        ArchiveError: the archive cannot be read.
    """
    if one == other:
        raise ConfigError(f"both are run {one}: name two runs")
    with held(archive):
        starts = _starts(archive, one, other)
        update, game, evals = _common(one, other, starts)
        limits = {"from_update": update, "from_game": game, "evals": int(evals)}
        settings = _settings(starts[one], starts[other])
        places: list[tuple[tuple[int, ...], LayerDiff]] = [((-2,), settings)]
        for family in FAMILIES:
            places += _compared(archive, family, (one, other), limits)
    first = min((place for place in places if place[1].differing), key=lambda place: place[0], default=None)
    layers = [_mark(layer, first[1] if first else None) for _, layer in places]
    reasons = {layer.name: layer.means for layer in _ORDER}
    reason = reasons.get(first[1].layer, "settings, code or environments that differ") if first else ""
    return RunDiff(one, other, layers, first[1] if first else None, reason, max(update, 0))


def _mark(layer: LayerDiff, first: LayerDiff | None) -> LayerDiff:
    return layer if not layer.differing or layer is first else replace(layer, follows=True)


class _Beginning(NamedTuple):
    """The record of a run's beginning."""

    settings: Mapping[str, str]
    """As JSON, by key with its section; code and environments as ``code.NAME``."""
    parent: str | None
    update: int
    games: int


def _starts(archive: ArchiveAddress, one: str, other: str) -> dict[str, _Beginning]:
    rows = query(
        archive,
        "SELECT run_id, config, package_version, extensions, environments, parent_run_id, parent_update, "
        "parent_games FROM run_events WHERE type = 'run-started' AND run_id IN (?, ?)",
        [one, other],
    ).dicts()
    found = {}
    for row in rows:
        code = {"unstable_stream": row["package_version"]}
        for kind, name in (("extensions", "target"), ("environments", "env_id")):
            for use in msgspec.json.decode(row[kind] or "[]"):
                code[use[name]] = [use.get(key) for key in ("distribution", "version", "sha256")]
        config = msgspec.json.decode(row["config"] or "{}")
        counted = {key: value for key, value in config.items() if key not in _NOT_COUNTED}
        found[row["run_id"]] = _Beginning(
            flattened({"code": code} | counted),
            row["parent_run_id"],
            row["parent_update"] or 0,
            row["parent_games"] or 0,
        )
    return found


def _common(one: str, other: str, starts: Mapping[str, _Beginning]) -> tuple[int, int, bool]:
    """Return the update and the number of games that two branches of one history share; -1 and 0: none.

    And whether evaluation games of one number are of one checkpoint: a fork counts them from 0.
    """
    forks = [starts[run] for run in (one, other) if starts[run].parent is not None]
    related = any(fork.parent in (one, other) for fork in forks) or (
        len(forks) == 2 and forks[0].parent == forks[1].parent
    )
    if not related:
        return (-1, 0, True)
    updates = [fork.update for fork in forks]
    return (max(updates), max(fork.games for fork in forks), len(forks) == 2 and len(set(updates)) == 1)


def _settings(one: _Beginning, other: _Beginning) -> LayerDiff:
    keys = list(dict.fromkeys((*one.settings, *other.settings)))
    differ = [key for key in keys if one.settings.get(key) != other.settings.get(key)]
    if not differ:
        return LayerDiff("settings and code", len(keys), 0)
    shown = [
        "; ".join(f"{key} = {run.settings.get(key, 'not set')}" for key in differ[:8]) for run in (one, other)
    ]
    return LayerDiff("settings and code", len(keys), len(differ), None, ", ".join(differ), *_cut(*shown))


def _compared(
    archive: ArchiveAddress, family: Family, runs: tuple[str, str], limits: Mapping[str, int]
) -> list[tuple[tuple[int, ...], LayerDiff]]:
    """Return the family's layers, each with the place in time of its first difference."""

    def ask(values: str, select: str, more: Mapping[str, int]) -> Sequence[tuple[Any, ...]]:
        rows = family.rows.format(values=values)
        a = rows.replace("$run", "$one").replace("$other", "$two")
        b = rows.replace("$run", "$two").replace("$other", "$one")
        sql = f"WITH a AS ({a}), b AS ({b}) {select}"
        parameters = {"one": runs[0], "two": runs[1], **limits, **more}
        used = {name: value for name, value in parameters.items() if f"${name}" in sql}
        return query(archive, sql, used).rows

    # Texts are compared by their hashes, and read where they differ first.
    names = {layer.name: f"v{number}" for number, layer in enumerate(family.layers)}
    hashes = ", ".join(f"hash({layer.value}) AS {names[layer.name]}" for layer in family.layers)
    differ = {layer: f"a.{name} IS DISTINCT FROM b.{name}" for layer, name in names.items()}
    if "log-probabilities" in differ:
        same = names["sampled tokens"]
        differ["log-probabilities"] += f" AND a.{same} = b.{same}"
    key = ", ".join(_KEY)
    counted = ", ".join(
        f"count(*) FILTER ({differs}), min((coalesce(a.version, b.version), {key})) FILTER ({differs})"
        for differs in differ.values()
    )
    ((compared, *found),) = ask(hashes, f"SELECT count(*), {counted} FROM a FULL JOIN b USING ({key})", {})
    layers: list[tuple[tuple[int, ...], LayerDiff]] = []
    for layer, differing, first in zip(family.layers, found[::2], found[1::2], strict=True):
        if not differing:
            layers.append(((), LayerDiff(layer.name, compared, 0)))
            continue
        version, *place = first
        at = dict(zip(_KEY, place, strict=True))
        where = " AND ".join(f"{name} = ${name}" for name in _KEY)
        read = ", ".join(f"(SELECT any_value(value) FROM {side} WHERE {where})" for side in "ab")
        (texts,) = ask(f"{layer.value} AS value", f"SELECT {read}", at)
        words = family.place.format(split="eval" if at["k0"] else "train", **at)
        when = (version, family.phase, *place, _ORDER.index(layer))
        layers.append((when, LayerDiff(layer.name, compared, differing, version, words, *_cut(*texts))))
    return layers


def _cut(one: object, other: object) -> tuple[str | None, str | None]:
    """Return two values as texts, from shortly before their first difference, not too long."""
    if one is None or other is None:
        return (
            None if one is None else str(one)[:_LONGEST],
            None if other is None else str(other)[:_LONGEST],
        )
    a, b = str(one), str(other)
    same = next(
        (place for place, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )
    start = same - _AROUND if same > 2 * _AROUND else 0
    dots = "…" if start else ""
    return (dots + a[start : start + _LONGEST], dots + b[start : start + _LONGEST])
