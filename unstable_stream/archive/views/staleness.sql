-- How far behind the learner the data of each update was. A step that policy v sampled and update u trained on
-- is u - 1 - v updates old: 0 is on-policy.
-- run_id: The run.
-- model: Name of the trained model; NULL: the run trains one.
-- update: The learner update.
-- trained_steps: Steps trained on.
-- mean_staleness: Mean over the steps trained on, updates.
-- max_staleness: Oldest step trained on, updates.
-- dropped_stale: Steps dropped as too old.
-- dropped_other: Steps dropped for other reasons.
-- Example: SELECT update, mean_staleness, max_staleness, dropped_stale FROM staleness ORDER BY update
SELECT
    u.run_id, u.model, u.update,
    count(*) FILTER (u.fate = 'trained') AS trained_steps,
    avg(u.update - 1 - s.policy_version) FILTER (u.fate = 'trained') AS mean_staleness,
    max(u.update - 1 - s.policy_version) FILTER (u.fate = 'trained') AS max_staleness,
    count(*) FILTER (u.reason = 'stale') AS dropped_stale,
    count(*) FILTER (u.fate = 'dropped' AND u.reason <> 'stale') AS dropped_other
FROM update_steps AS u
LEFT JOIN steps AS s USING (step_id)
GROUP BY u.run_id, u.model, u.update
