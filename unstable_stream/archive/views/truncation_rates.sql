-- How long each model's completions were, and how often it or its game was cut off.
-- run_id: The run.
-- split: `train` or `eval`.
-- env_id: TextArena environment.
-- model_uid: The language model.
-- policy_version: Learner update that made it; NULL for a fixed opponent.
-- turns: Completions.
-- mean_completion_tokens: Mean sampled tokens; NULL without a completion.
-- max_completion_tokens: Most sampled tokens.
-- truncated_turns: Completions cut at the token limit.
-- truncated_turn_rate: truncated_turns / turns, 0 to 1; NULL without a completion.
-- games: Seats played in finished games.
-- truncated_games: Those whose game was cut off at the limit of turns.
-- truncated_game_rate: truncated_games / games, 0 to 1.
-- Example: SELECT policy_version, mean_completion_tokens, truncated_turn_rate, truncated_game_rate
-- FROM truncation_rates WHERE split = 'train' ORDER BY policy_version
SELECT
    t.run_id, t.split, t.env_id, t.model_uid, t.policy_version,
    sum(u.turns)::BIGINT AS turns,
    sum(u.tokens) / nullif(sum(u.turns), 0) AS mean_completion_tokens,
    max(u.longest) AS max_completion_tokens,
    sum(u.cut)::BIGINT AS truncated_turns,
    sum(u.cut) / nullif(sum(u.turns), 0) AS truncated_turn_rate,
    count(*) AS games,
    count(*) FILTER (t.reason = 'truncated') AS truncated_games,
    count(*) FILTER (t.reason = 'truncated') / count(*) AS truncated_game_rate
FROM trajectories AS t
LEFT JOIN (
    SELECT
        trajectory_id,
        count(*) AS turns,
        sum(completion_tokens) AS tokens,
        max(completion_tokens) AS longest,
        count(*) FILTER (finish_reason = 'length') AS cut
    FROM turns GROUP BY trajectory_id
) AS u USING (trajectory_id)
GROUP BY t.run_id, t.split, t.env_id, t.model_uid, t.policy_version
