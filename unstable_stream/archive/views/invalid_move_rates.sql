-- How often each model made moves the environment refused.
-- run_id: The run.
-- split: `train` or `eval`.
-- env_id: TextArena environment.
-- model_uid: Checkpoint or fixed opponent.
-- policy_version: Learner update that made it; NULL for a fixed opponent.
-- games: Seats played in finished games.
-- moves: Moves.
-- invalid_moves: Moves refused.
-- invalid_move_rate: invalid_moves / moves, 0 to 1; NULL without moves.
-- games_ended_invalid: Games its invalid move ended.
-- invalid_game_rate: games_ended_invalid / games, 0 to 1.
-- Example: SELECT policy_version, games, invalid_move_rate, invalid_game_rate FROM invalid_move_rates
-- WHERE policy_version IS NOT NULL AND split = 'train' ORDER BY policy_version
SELECT
    run_id, split, env_id, model_uid, policy_version,
    count(*) AS games,
    sum(turns)::BIGINT AS moves,
    sum(seats.invalid_moves)::BIGINT AS invalid_moves,
    sum(seats.invalid_moves) / nullif(sum(turns), 0) AS invalid_move_rate,
    count(*) FILTER (ended_invalid) AS games_ended_invalid,
    count(*) FILTER (ended_invalid) / count(*) AS invalid_game_rate
FROM seats
GROUP BY run_id, split, env_id, model_uid, policy_version
