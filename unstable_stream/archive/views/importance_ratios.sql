-- How far the policy had moved from the one that sampled each update's tokens, as the learner measured it; see
-- docs/reference/metrics.md. NULL where the algorithm does not report it.
-- run_id: The run.
-- model: Name of the trained model; NULL: the run trains one.
-- update: The learner update.
-- mean_ratio: Mean over the trained tokens of probability now / probability when sampled; 1: on-policy.
-- max_ratio: Largest ratio of a token.
-- clipped_rate: Share of tokens whose ratio was cut at `algorithm.is_clip`, 0 to 1.
-- approx_kl: Divergence between sampling and present policy, nats per token.
-- mean_staleness: Mean policy versions between the two.
-- Example: SELECT update, mean_ratio, max_ratio, clipped_rate, approx_kl FROM importance_ratios ORDER BY update
SELECT
    run_id, model, update,
    metrics['is_ratio_mean'] AS mean_ratio,
    metrics['is_ratio_max'] AS max_ratio,
    metrics['is_clipped_fraction'] AS clipped_rate,
    metrics['approx_kl'] AS approx_kl,
    metrics['staleness_mean'] AS mean_staleness
FROM updates
