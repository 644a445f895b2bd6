-- Every game ever started, one row each, with what came of it.
-- game_id: The game.
-- run_id: The run.
-- state: `finished`, `abandoned` or `in-flight`.
-- split: `train` or `eval`.
-- game_index: 0, 1, 2, … within run and split.
-- env_id: TextArena environment.
-- seed: The game's seed.
-- models: Model uids in seat order.
-- evaluated_uid: The checkpoint under evaluation; NULL in the train split, and where opponents play each other.
-- started_at: UTC.
-- ended_at: UTC, of the outcome or the abandonment; NULL in flight.
-- reason: `win`, `draw`, `invalid-move`, `truncated`, or why it was abandoned.
-- reason_text: What the environment said about the end.
-- winner: Winning models, joined by ` + ` if several; NULL: nobody.
-- rewards: Final rewards in seat order.
-- invalid_seat: Whose invalid move ended the game; NULL: nobody's.
-- num_turns: Moves of all seats.
-- duration_ms: Milliseconds from reset to end.
-- parent_game_id: The game from a position of which it was played on; NULL: it began at the beginning, or has not ended.
-- parent_turn: The number of that game's moves before the position.
-- Example: SELECT state, split, count(*) AS games FROM games GROUP BY state, split ORDER BY state, split
SELECT
    game_id,
    coalesce(o.run_id, s.run_id, a.run_id) AS run_id,
    CASE WHEN o.finished_at IS NOT NULL THEN 'finished' WHEN a.abandoned_at IS NOT NULL THEN 'abandoned' ELSE 'in-flight' END AS state,
    coalesce(o.split, s.split, a.split) AS split,
    coalesce(o.game_index, s.game_index, a.game_index) AS game_index,
    coalesce(o.env_id, s.env_id) AS env_id,
    coalesce(o.seed, s.seed) AS seed,
    coalesce(o.models, s.models) AS models,
    coalesce(o.evaluated_uid, s.evaluated_uid) AS evaluated_uid,
    s.started_at,
    coalesce(o.finished_at, a.abandoned_at) AS ended_at,
    coalesce(o.reason, a.reason) AS reason,
    o.reason_text,
    o.winner,
    o.rewards,
    o.invalid_seat,
    o.num_turns,
    o.duration_ms,
    o.position->>'$.game_id' AS parent_game_id,
    CAST(o.position->>'$.turn' AS INTEGER) AS parent_turn
FROM game_starts AS s
FULL JOIN game_outcomes AS o USING (game_id)
FULL JOIN game_abandonments AS a USING (game_id)
