-- What each run did in each minute in which it did anything.
-- run_id: The run.
-- minute: UTC, start of the minute.
-- games: Games finished, train and eval.
-- turns: Moves in those games.
-- completion_tokens: Tokens sampled in them.
-- tokens_per_second: completion_tokens / 60.
-- updates: Learner updates.
-- trained_steps: Steps trained on.
-- Example: SELECT minute, games, turns, tokens_per_second, updates, trained_steps FROM throughput ORDER BY minute
WITH done AS (
    SELECT run_id, date_trunc('minute', finished_at) AS minute, 1 AS games, num_turns AS turns, 0 AS tokens, 0 AS updates, 0 AS trained
    FROM game_outcomes
    UNION ALL
    SELECT run_id, date_trunc('minute', finished_at), 0, 0, completion_tokens, 0, 0 FROM trajectories
    UNION ALL
    SELECT run_id, date_trunc('minute', occurred_at), 0, 0, 0, 1, trained_steps FROM updates
)
SELECT
    run_id, minute,
    sum(games)::BIGINT AS games,
    sum(turns)::BIGINT AS turns,
    sum(tokens)::BIGINT AS completion_tokens,
    sum(tokens) / 60 AS tokens_per_second,
    sum(updates)::BIGINT AS updates,
    sum(trained)::BIGINT AS trained_steps
FROM done
GROUP BY run_id, minute
