-- Which part of a run computed on which machine, and when and why that changed.
-- run_id: The run.
-- occurred_at: UTC.
-- part: `learner`, `rollout-0`, `engine-0`, …
-- change: `added`, `removed` (in order) or `lost`.
-- host: The machine; empty: not known.
-- node: Ray's id of the machine; empty: not known.
-- reason: The reason for which the part came or went.
-- Example: SELECT occurred_at, part, change, host, reason FROM where_it_ran ORDER BY occurred_at
SELECT run_id, occurred_at, part, change, host, node, reason FROM part_changes
UNION ALL
SELECT run_id, occurred_at, engine, change, host, coalesce(node, ''), reason FROM engine_changes
WHERE type = 'engines-changed'
