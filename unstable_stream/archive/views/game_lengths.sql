-- How long finished games were, by the newest checkpoint that played in them.
-- run_id: The run.
-- split: `train` or `eval`.
-- env_id: TextArena environment.
-- policy_version: Learner update that made the newest checkpoint at the table; NULL: there was none.
-- games: Finished games.
-- mean_turns: Mean moves of all seats.
-- median_turns: Median of the same.
-- p95_turns: 95 % of the games had at most about so many (interpolated).
-- max_turns: Most moves.
-- mean_completion_tokens: Mean tokens sampled in a game by all language models.
-- mean_duration_s: Mean seconds from reset to end.
-- truncated_rate: Share cut off at the limit of turns, 0 to 1.
-- Example: SELECT policy_version, games, mean_turns, median_turns, max_turns FROM game_lengths
-- WHERE split = 'train' ORDER BY policy_version
SELECT
    o.run_id, o.split, o.env_id, s.policy_version,
    count(*) AS games,
    avg(o.num_turns) AS mean_turns,
    median(o.num_turns) AS median_turns,
    quantile_cont(o.num_turns, 0.95) AS p95_turns,
    max(o.num_turns) AS max_turns,
    avg(coalesce(t.completion_tokens, 0)) AS mean_completion_tokens,
    avg(o.duration_ms) / 1000 AS mean_duration_s,
    count(*) FILTER (o.reason = 'truncated') / count(*) AS truncated_rate
FROM game_outcomes AS o
JOIN (SELECT game_id, max(policy_version) AS policy_version FROM seats GROUP BY game_id) AS s USING (game_id)
LEFT JOIN (
    SELECT game_id, sum(completion_tokens) AS completion_tokens FROM trajectories GROUP BY game_id
) AS t USING (game_id)
GROUP BY o.run_id, o.split, o.env_id, s.policy_version
