"""The relations between nodes, as SQL. A new relation, description or summary is one entry here.

A statement gets ``$run``, the id of one run, and ``$ids``, the ids of its nodes of one kind: names of
updates, uids of checkpoints, event ids for the others. An update's name is its number; in a run that trains
several models, ``MODEL/NUMBER``. ``$first_game`` and ``$last_game`` are the indices between which the games
of the nodes lie: nothing helps to find an id, but rows are stored nearly in the order of games, so DuckDB can
skip most of them. Rows of one record have its number.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_GIVEN: Final = "(SELECT unnest($ids))"
_NEAR: Final = "game_index BETWEEN $first_game AND $last_game"


def _of_records(table: str) -> str:
    """Return the condition that a row was made from a record of one of these rows."""
    return f"record_number IN (SELECT record_number FROM {table})"


def _is_given(table: str = "") -> str:
    """Return the condition that the update of a row is among those given.

    Their numbers say nothing more than their names. But rows are stored in the order of updates, so DuckDB
    can skip all that are far from these.
    """
    return (
        f"{table}update IN (SELECT split_part(unnest($ids), '/', -1)::INTEGER) "
        f"AND concat_ws('/', {table}model, {table}update) IN {_GIVEN}"
    )


@dataclass(frozen=True, slots=True)
class Relation:
    """One relation from nodes of a kind to others."""

    words: str
    """Words that follow the node: ``trained on``."""
    kind: str
    """The kind of the nodes that it leads to."""
    sql: str
    """SQL with the columns ``parent``, ``run_id``, ``id``, ``note`` (may be NULL), and ``place``, the sort
    key.
    """
    of_same_game: bool = False
    """Whether a node and those that it leads to are of one game."""

    def query(self) -> str:
        """Return the statement that counts all and returns the first ``$most`` of each parent."""
        return f"""
            SELECT parent, run_id, id, note, total FROM (
                SELECT *, count(*) OVER (PARTITION BY parent) AS total,
                    row_number() OVER (PARTITION BY parent ORDER BY place) AS number
                FROM ({self.sql})
            ) WHERE $most IS NULL OR number <= $most ORDER BY parent, number
        """


def _column(
    words: str,
    kind: str,
    given: str,
    id_: str,
    *,
    note: str = "NULL",
    place: str = "0",
    where: str = "true",
    of_same_game: bool = False,
) -> Relation:
    """Return the relation from ``given``, a column after the name of its table, to another one, ``id_``."""
    table, _, parent = given.partition(".")
    near = f"AND {_NEAR} " if table in ("steps", "trajectories") else ""
    sql = (
        f"SELECT {parent} AS parent, run_id, {id_} AS id, {note} AS note, {place} AS place FROM {table} "
        f"WHERE run_id = $run {near}AND {parent} IN {_GIVEN} AND {id_} IS NOT NULL AND {where}"
    )
    return Relation(words, kind, sql, of_same_game)


def _update_of(words: str, number: str) -> Relation:
    """Return the relation of a checkpoint ``c`` and the update of its model with this number."""
    sql = f"""
        SELECT c.model_uid AS parent, u.run_id, concat_ws('/', u.model, u.update) AS id, NULL AS note,
            u.update AS place
        FROM checkpoints AS c JOIN updates AS u
            ON u.run_id = c.run_id AND u.update = {number} AND u.model IS NOT DISTINCT FROM c.model
        WHERE c.run_id = $run AND c.model_uid IN {_GIVEN}
    """
    return Relation(words, "update", sql)


_UPDATE_ID = "concat_ws('/', model, update)"
_UPDATE_STEPS = f"""
    SELECT concat_ws('/', model, update) AS parent, run_id, step_id AS id, reason AS note,
        coalesce(batch_position, 0) AS place
    FROM update_steps WHERE run_id = $run AND {_is_given()} AND fate =
"""

_BECAUSE: Final[Mapping[str, tuple[Relation, ...]]] = {
    "run": (
        Relation(
            "was forked from",
            "checkpoint",
            f"""
            SELECT r.run_id AS parent, c.run_id, c.model_uid AS id, NULL AS note, 0 AS place
            FROM runs AS r
            JOIN checkpoints AS c ON c.run_id = r.parent_run_id AND c.iteration = r.parent_update
            WHERE r.run_id = $run AND r.run_id IN {_GIVEN}
            """,
        ),
    ),
    "checkpoint": (
        _update_of("was made by", "c.iteration"),
        _column("was trained from", "checkpoint", "checkpoints.model_uid", "parent_uid"),
    ),
    "update": (
        Relation(
            "started from",
            "checkpoint",
            f"""
            SELECT concat_ws('/', u.model, u.update) AS parent, u.run_id,
                arg_max(c.model_uid, c.iteration) AS id, NULL AS note, 0 AS place
            FROM updates AS u JOIN checkpoints AS c
                ON c.run_id = u.run_id AND c.iteration < u.update AND u.model IS NOT DISTINCT FROM c.model
            WHERE u.run_id = $run AND {_is_given("u.")}
            GROUP BY u.model, u.update, u.run_id
            """,
        ),
        Relation("trained on", "step", _UPDATE_STEPS + "'trained'"),
        Relation("dropped", "step", _UPDATE_STEPS + "'dropped'"),
    ),
    "step": (
        Relation(
            "was a move in",
            "game",
            f"""
            SELECT s.step_id AS parent, coalesce(o.run_id, s.run_id) AS run_id, s.game_id AS id,
                if(o.run_id <> s.run_id, 'of run ' || o.run_id, NULL) AS note, 0 AS place
            FROM (FROM steps WHERE run_id = $run AND {_NEAR} AND step_id IN {_GIVEN}) AS s
            LEFT JOIN (FROM game_outcomes WHERE {_NEAR}) AS o USING (game_id)
            """,
            of_same_game=True,
        ),
        # Of an imitated move the player is of the game's run, and is named with it.
        _column(
            "was sampled by",
            "checkpoint",
            "steps.step_id",
            "model_uid",
            where="model_uid IN (SELECT model_uid FROM checkpoints WHERE run_id = $run)",
        ),
    ),
    "trajectory": (
        _column(
            "was a seat of",
            "game",
            "trajectories.trajectory_id",
            "game_id",
            note="'seat ' || seat",
            of_same_game=True,
        ),
        _column(
            "was played by",
            "checkpoint",
            "trajectories.trajectory_id",
            "model_uid",
            where="policy_version IS NOT NULL",
        ),
    ),
    "game": (
        Relation(
            "was played by",
            "checkpoint",
            f"""
            WITH begun AS (FROM game_starts WHERE run_id = $run AND {_NEAR} AND game_id IN {_GIVEN})
            SELECT game_id AS parent, run_id, model_uid AS id,
                string_agg('seat ' || seat, ', ' ORDER BY seat) AS note, min(seat) AS place
            FROM planned_seats WHERE run_id = $run AND game_id IN {_GIVEN} AND kind = 'checkpoint'
                AND {_of_records("begun")}
            GROUP BY game_id, run_id, model_uid
            """,
        ),
    ),
    "rating": (_column("was given for", "game", "events.event_id", "value->>'$.game_id'"),),
}
_LED_TO: Final[Mapping[str, tuple[Relation, ...]]] = {
    "run": (
        _column("made", "checkpoint", "checkpoints.run_id", "model_uid", place="-iteration"),
        Relation(
            "was forked into",
            "run",
            "SELECT parent_run_id AS parent, run_id, run_id AS id, 'at update ' || parent_update AS note, "
            f"started_at AS place FROM runs WHERE parent_run_id = $run AND parent_run_id IN {_GIVEN}",
        ),
    ),
    "checkpoint": (
        _update_of("was the start of", "c.iteration + 1"),
        Relation(
            "sampled moves trained on by",
            "update",
            f"""
            SELECT s.model_uid AS parent, s.run_id, concat_ws('/', u.model, u.update) AS id,
                count(*) || ' moves' AS note, u.update AS place
            FROM steps AS s JOIN update_steps AS u USING (step_id)
            WHERE s.run_id = $run AND u.run_id = $run AND s.model_uid IN {_GIVEN} AND u.fate = 'trained'
            GROUP BY s.model_uid, s.run_id, u.model, u.update
            """,
        ),
        _column(
            "played in",
            "game",
            "seats.model_uid",
            "game_id",
            note="'seat ' || seat || ': ' || result",
            place="(split, finished_at, seat)",
        ),
        Relation(
            "was forked into",
            "run",
            f"""
            SELECT c.model_uid AS parent, r.run_id, r.run_id AS id, NULL AS note, r.started_at AS place
            FROM checkpoints AS c
            JOIN runs AS r ON r.parent_run_id = c.run_id AND r.parent_update = c.iteration
            WHERE c.run_id = $run AND c.model_uid IN {_GIVEN}
            """,
        ),
    ),
    "update": (_column("made", "checkpoint", f"updates.{_UPDATE_ID}", "model_uid"),),
    "step": (
        _column(
            "was trained on by",
            "update",
            "update_steps.step_id",
            _UPDATE_ID,
            note="'at place ' || batch_position || ' of the batch'",
            place="update",
            where="fate = 'trained'",
        ),
        _column(
            "was dropped by",
            "update",
            "update_steps.step_id",
            _UPDATE_ID,
            note="reason",
            place="update",
            where="fate = 'dropped'",
        ),
    ),
    "trajectory": (
        _column("became", "step", "steps.trajectory_id", "step_id", place="turn_index", of_same_game=True),
    ),
    "game": (
        _column("became", "step", "steps.game_id", "step_id", place="(turn_index, seat)", of_same_game=True),
    ),
}
RELATIONS: Final = {"because": _BECAUSE, "led-to": _LED_TO}

DESCRIPTIONS: Final[Mapping[str, str]] = {
    "run": f"""
        SELECT run_id AS id, name, state, started_at, finished_at, seed, parent_run_id, parent_update
        FROM runs WHERE run_id = $run AND run_id IN {_GIVEN}
    """,
    "checkpoint": f"""
        SELECT model_uid AS id, iteration, sha256, path, size_bytes, base_model, parameters, parent_uid,
            occurred_at AS made_at
        FROM checkpoints WHERE run_id = $run AND model_uid IN {_GIVEN}
    """,
    "update": f"""
        SELECT concat_ws('/', model, update) AS id, occurred_at AS made_at, trained_steps, dropped_steps,
            loss, metrics, positions, duration_ms
        FROM updates WHERE run_id = $run AND {_is_given()}
    """,
    "step": f"""
        WITH chosen AS (FROM steps WHERE run_id = $run AND {_NEAR} AND step_id IN {_GIVEN}),
            whole AS (
                FROM trajectories WHERE run_id = $run AND game_index IN (SELECT game_index FROM chosen)
                    AND trajectory_id IN (SELECT trajectory_id FROM chosen)
            )
        SELECT s.step_id AS id, s.trajectory_id, s.game_id, s.game_index, s.env_id, s.seat, s.turn_index,
            s.model_uid, s.policy_version, s.raw_reward, s.final_reward, s.reward, s.truncated,
            t.game_turn, t.action, t.completion, t.prompt_token_ids, t.completion_token_ids, t.logprobs
        FROM chosen AS s
        LEFT JOIN (
            FROM turns WHERE run_id = $run AND trajectory_id IN (SELECT trajectory_id FROM whole)
                AND {_of_records("whole")}
        ) AS t USING (trajectory_id, turn_index)
    """,
    "trajectory": f"""
        SELECT trajectory_id AS id, game_id, game_index, split, env_id, seed, seat, model_uid, policy_version,
            role, template, trained, opponents, num_turns, prompt_tokens, completion_tokens, reward, reason,
            temperature
        FROM trajectories WHERE run_id = $run AND {_NEAR} AND trajectory_id IN {_GIVEN}
    """,
    "game": f"""
        WITH chosen AS (SELECT unnest($ids) AS game_id),
            begun AS (FROM game_starts WHERE run_id = $run AND {_NEAR} AND game_id IN (FROM chosen)),
            done AS (FROM game_outcomes WHERE run_id = $run AND {_NEAR} AND game_id IN (FROM chosen)),
            lost AS (FROM game_abandonments WHERE run_id = $run AND {_NEAR} AND game_id IN (FROM chosen)),
            planned AS (
                FROM planned_seats
                WHERE run_id = $run AND game_id IN (FROM chosen) AND {_of_records("begun")}
            ),
            played AS (
                FROM seats WHERE run_id = $run AND game_id IN (FROM chosen) AND {_of_records("done")}
            ),
            made AS (FROM checkpoints WHERE run_id = $run),
            players AS (
                SELECT game_id, list({{
                    seat: seat, model_uid: coalesce(r.model_uid, p.model_uid), kind: coalesce(r.kind, p.kind),
                    template: p.template, trained: coalesce(r.trained, p.trained), sha256: made.sha256,
                    result: r.result, reward: r.reward
                }} ORDER BY seat) AS seats
                FROM planned AS p FULL JOIN played AS r USING (game_id, seat)
                LEFT JOIN made ON made.model_uid = coalesce(r.model_uid, p.model_uid)
                GROUP BY game_id
            )
        SELECT game_id AS id, coalesce(o.split, b.split) AS split,
            coalesce(o.game_index, b.game_index) AS game_index,
            coalesce(o.env_id, b.env_id) AS env_id, coalesce(o.seed, b.seed) AS seed,
            CASE WHEN o.finished_at IS NOT NULL THEN 'finished'
                WHEN a.abandoned_at IS NOT NULL THEN 'abandoned' ELSE 'in-flight' END AS state,
            coalesce(o.reason, a.reason) AS reason, o.winner, o.num_turns, o.finished_at, s.seats
        FROM begun AS b FULL JOIN done AS o USING (game_id) LEFT JOIN lost AS a USING (game_id)
        LEFT JOIN players AS s USING (game_id)
    """,
    "rating": f"""
        SELECT event_id AS id, occurred_at, value->>'$.env_id' AS env_id, value->>'$.model_uid' AS model_uid,
            (value->>'$.mu')::DOUBLE AS mu, (value->>'$.sigma')::DOUBLE AS sigma,
            (value->>'$.games')::BIGINT AS games
        FROM events WHERE run_id = $run AND event_id IN {_GIVEN}
    """,
    "event": f"""
        SELECT event_id AS id, type, topic, "partition", "offset", occurred_at, value
        FROM events WHERE run_id = $run AND event_id IN {_GIVEN}
    """,
}

_OF_STEPS = """
    count(*) AS steps,
    count(DISTINCT s.game_id) AS games,
    count(DISTINCT s.trajectory_id) AS trajectories,
    sum(s.completion_tokens)::BIGINT AS completion_tokens,
    sum(s.prompt_tokens)::BIGINT AS prompt_tokens,
    histogram(s.env_id) AS environments,
    histogram(s.model_uid) AS policies
"""
SUMMARIES: Final[Mapping[str, str]] = {
    "update": f"""
        WITH chosen AS (
            SELECT s.* FROM update_steps AS u JOIN steps AS s USING (step_id)
            WHERE u.run_id = $run AND s.run_id = $run AND {_is_given("u.")}
                AND u.fate = 'trained'
        ),
        met AS (
            SELECT t.opponents, c.game_id FROM chosen AS c
            JOIN (FROM trajectories WHERE run_id = $run) AS t USING (game_index, trajectory_id)
        )
        SELECT {_OF_STEPS},
            (SELECT histogram(opponent) FROM (SELECT unnest(opponents) AS opponent FROM met)) AS opponents
        FROM chosen AS s
    """,
    "game": f"""
        SELECT {_OF_STEPS},
            count(*) FILTER (u.fate = 'trained') AS trained, count(*) FILTER (u.fate = 'dropped') AS dropped,
            count(*) FILTER (u.fate IS NULL) AS pending,
            (SELECT list({{model_uid: model_uid, env_id: env_id, mu: mu, sigma: sigma}}
                ORDER BY env_id, model_uid)
                FROM ratings WHERE run_id = $run AND game_id IN {_GIVEN}) AS ratings
        FROM (FROM steps WHERE run_id = $run AND {_NEAR} AND game_id IN {_GIVEN}) AS s
        LEFT JOIN (FROM update_steps WHERE run_id = $run) AS u USING (step_id)
    """,
    "checkpoint": f"""
        SELECT count(*) AS seats, count(DISTINCT game_id) AS games,
            histogram(split || ' ' || result) AS results, histogram(opponent) AS opponents
        FROM seats WHERE run_id = $run AND model_uid IN {_GIVEN}
    """,
}
"""Counts of everything that a root node was made of or did; one row."""
