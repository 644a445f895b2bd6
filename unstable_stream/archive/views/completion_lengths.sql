-- How long the completions were that each update trained on.
-- run_id: The run.
-- model: Name of the trained model; NULL: the run trains one.
-- update: The learner update.
-- steps: Steps trained on.
-- mean_completion_tokens: Mean sampled tokens per step.
-- min_completion_tokens: Shortest, tokens.
-- max_completion_tokens: Longest, tokens.
-- mean_prompt_tokens: Mean prompt tokens per step.
-- truncated_rate: Share cut at the token limit, 0 to 1.
-- Question: How long are the completions each update trained on?
-- Example: SELECT update, steps, mean_completion_tokens, truncated_rate FROM completion_lengths ORDER BY update
SELECT
    u.run_id, u.model, u.update,
    count(*) AS steps,
    avg(s.completion_tokens) AS mean_completion_tokens,
    min(s.completion_tokens) AS min_completion_tokens,
    max(s.completion_tokens) AS max_completion_tokens,
    avg(s.prompt_tokens) AS mean_prompt_tokens,
    count(*) FILTER (s.truncated) / count(*) AS truncated_rate
FROM update_steps AS u
JOIN steps AS s USING (step_id)
WHERE u.fate = 'trained'
GROUP BY u.run_id, u.model, u.update
