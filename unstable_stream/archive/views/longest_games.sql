-- Finished games, the longest first; add `LIMIT 10`.
-- game_id: The game.
-- run_id: The run.
-- split: `train` or `eval`.
-- game_index: 0, 1, 2, … within run and split.
-- env_id: TextArena environment.
-- models: Model uids in seat order.
-- num_turns: Moves of all seats.
-- completion_tokens: Tokens sampled by all language models in it.
-- duration_s: Seconds from reset to end.
-- reason: `win`, `draw`, `invalid-move` or `truncated`.
-- winner: Winning models; NULL: nobody.
-- Question: What were the ten longest games?
-- Example: SELECT game_id, models, num_turns, completion_tokens, reason FROM longest_games LIMIT 10
SELECT
    o.game_id, o.run_id, o.split, o.game_index, o.env_id, o.models, o.num_turns,
    coalesce(t.completion_tokens, 0)::BIGINT AS completion_tokens,
    o.duration_ms / 1000 AS duration_s,
    o.reason, o.winner
FROM game_outcomes AS o
LEFT JOIN (
    SELECT game_id, sum(completion_tokens) AS completion_tokens FROM trajectories GROUP BY game_id
) AS t USING (game_id)
ORDER BY o.num_turns DESC, o.run_id, o.split, o.game_index
