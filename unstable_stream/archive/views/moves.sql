-- Every move of every finished game, whoever made it: what imitation chooses from. Of a branch, those that its players decided on.
-- run_id: The run.
-- game_id: The game.
-- game_turn: 0-based among the game's moves.
-- split: `train` or `eval`.
-- env_id: TextArena environment.
-- seat: 0-based player number.
-- turn_index: 0-based among these moves of the seat.
-- model_uid: Who moved: a checkpoint's uid, or the name of an opponent.
-- kind: `checkpoint`, `adapter`, `model`, `openai`, `scripted` or `human`.
-- policy_version: Update of the checkpoint; NULL: it is none of this run.
-- opponent: The models of the other seats.
-- reward: The seat's final reward.
-- result: `win`, `draw` or `loss` of the seat.
-- action: Exactly what was passed to the environment.
-- valid: Whether the environment accepted it.
-- num_turns: Moves of the whole game.
-- observation: What the player saw; NULL: no tokens are recorded, and seed and moves make it again.
-- completion: What a language model wrote; NULL likewise.
-- parent_game_id: Of a branch, the game with the position; NULL: it is none.
-- branch_turn: The number of moves before that position: the move with this `game_turn` is the first from there, unless others were tried.
-- Example: SELECT model_uid, result, count(*) AS moves FROM moves WHERE valid GROUP BY ALL ORDER BY ALL
SELECT
    a.run_id,
    a.game_id,
    a.game_turn,
    s.split,
    s.env_id,
    a.seat,
    CAST(row_number() OVER (PARTITION BY a.game_id, a.seat ORDER BY a.game_turn) - 1 AS INTEGER) AS turn_index,
    s.model_uid,
    s.kind,
    s.policy_version,
    s.opponent,
    s.reward,
    s.result,
    a.action,
    a.valid,
    o.num_turns,
    t.observation,
    t.completion,
    o.position->>'$.game_id' AS parent_game_id,
    CAST(o.position->>'$.turn' AS INTEGER) AS branch_turn
FROM actions AS a
JOIN seats AS s USING (game_id, seat)
JOIN game_outcomes AS o USING (game_id)
LEFT JOIN turns AS t USING (game_id, game_turn)
WHERE a.game_turn >= coalesce(CAST(o.position->>'$.moves' AS INTEGER), 0)
