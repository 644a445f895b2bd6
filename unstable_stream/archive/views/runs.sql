-- One row per run.
-- run_id: The run.
-- name: Display name.
-- state: `running`, `completed`, `stopped` or `failed`; a run killed without a word stays `running` here, and commands and pages call it `lost` after ten minutes of silence.
-- started_at: UTC.
-- finished_at: UTC; NULL while it runs.
-- resumptions: How often it was resumed.
-- reason: Why it ended.
-- trains: Whether it was to make updates of its own; false for evaluations, tournaments and games of people.
-- seed: Every seed derives from it.
-- sweep: The sweep that it belongs to; NULL: none.
-- varied: The keys that the sweep varies beside the seed, with the run's values, JSON; NULL: it belongs to none.
-- parent_run_id: The run it was forked from.
-- parent_update: At which update it was forked.
-- package_version: Of unstable_stream, when it started.
-- config: Resolved configuration, JSON, of the last start or resumption.
-- Example: SELECT run_id, name, state, started_at, finished_at, reason FROM runs ORDER BY started_at DESC
WITH last_end AS (
    SELECT run_id, max(occurred_at) AS at, arg_max(outcome, occurred_at) AS outcome, arg_max(reason, occurred_at) AS reason
    FROM run_events WHERE type = 'run-finished' GROUP BY run_id
),
begun AS (
    SELECT
        run_id,
        max(name) AS name,
        max(seed) AS seed,
        min(occurred_at) AS started_at,
        max(occurred_at) AS last_begun_at,
        coalesce(max(resumption), 0) AS resumptions,
        max(parent_run_id) AS parent_run_id,
        max(parent_update) AS parent_update,
        arg_min(package_version, occurred_at) AS package_version,
        arg_max(config, occurred_at) AS config
    FROM run_events WHERE type <> 'run-finished' GROUP BY run_id
)
SELECT
    begun.run_id,
    begun.name,
    CASE WHEN last_end.at >= begun.last_begun_at THEN last_end.outcome ELSE 'running' END AS state,
    begun.started_at,
    CASE WHEN last_end.at >= begun.last_begun_at THEN last_end.at END AS finished_at,
    begun.resumptions,
    CASE WHEN last_end.at >= begun.last_begun_at THEN last_end.reason END AS reason,
    coalesce(try_cast(begun.config->>'$.learner.iterations' AS BIGINT), 1) > coalesce(begun.parent_update, 0) AS trains,
    begun.seed,
    nullif(begun.config->>'$.sweep.name', '') AS sweep,
    CASE WHEN sweep IS NOT NULL THEN coalesce(begun.config->>'$.sweep.varied', '{}') END AS varied,
    begun.parent_run_id,
    begun.parent_update,
    begun.package_version,
    begun.config
FROM begun LEFT JOIN last_end USING (run_id)
