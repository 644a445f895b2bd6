-- How well each configuration of a sweep plays, over its seeds: by policy version, over all seats and opponents as in the
-- view `learning_curve`. Only the runs that have played with this version count.
-- sweep: The sweep, as in `runs`.
-- varied: The configuration: the keys that the sweep varies beside the seed, JSON.
-- split: `train` or `eval`.
-- env_id: TextArena environment.
-- model: Name of the trained model; NULL: the run trains one.
-- policy_version: Learner update that made the policy; 0 the initial policy.
-- seeds: Runs, one for each seed.
-- games: Seats played in all of them.
-- win_rate: Mean over the seeds of the share won, 0 to 1.
-- win_rate_low: Lower bound of its 95 % interval by Student's t over the seeds, which is at least as wide as Wilson's of all
-- games, of which those that repeat others count once; NULL: there is one seed.
-- win_rate_high: Upper bound.
-- Example: SELECT varied, policy_version, seeds, win_rate, win_rate_low, win_rate_high FROM sweep_results
-- WHERE split = 'eval' ORDER BY sweep, varied, policy_version
SELECT
    r.sweep, r.varied, c.split, c.env_id, c.model, c.policy_version,
    count(*) AS seeds,
    sum(c.games)::BIGINT AS games,
    avg(c.win_rate) AS win_rate,
    CASE WHEN seeds > 1 THEN least(
        greatest(0, avg(c.win_rate) - t_quantile(seeds - 1) * stddev_samp(c.win_rate) / sqrt(seeds)),
        wilson_low(avg(c.win_rate) * sum(c.independent_games), sum(c.independent_games))
    ) END AS win_rate_low,
    CASE WHEN seeds > 1 THEN greatest(
        least(1, avg(c.win_rate) + t_quantile(seeds - 1) * stddev_samp(c.win_rate) / sqrt(seeds)),
        wilson_high(avg(c.win_rate) * sum(c.independent_games), sum(c.independent_games))
    ) END AS win_rate_high
FROM learning_curve AS c JOIN runs AS r USING (run_id)
WHERE r.sweep IS NOT NULL AND c.games > 0
GROUP BY r.sweep, r.varied, c.split, c.env_id, c.model, c.policy_version
