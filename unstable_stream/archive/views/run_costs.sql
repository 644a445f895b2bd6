-- What each run has cost as a whole, and what came of it.
-- run_id: The run.
-- cpu_s: CPU-seconds of all processes; NULL: the run was recorded before processes reported them.
-- gpu_s: GPU-seconds that processes held GPUs for; NULL as above.
-- record_cpu_s: Of `cpu_s`, those of the record: the log, the archive and the stream processors; NULL as above.
-- peak_memory_bytes: Most resident memory of one process; NULL as above.
-- peak_gpu_memory_bytes: Most memory of GPUs that PyTorch had allocated in one process; NULL: it used none.
-- prompt_tokens: Tokens that models were given in finished games.
-- sampled_tokens: Tokens that they sampled in finished games.
-- trained_tokens: Sampled tokens that updates trained on; NULL: no update says it.
-- learner_s: Seconds in which the learner made updates.
-- learner_waits: Share of the time between updates in which it waited for steps; NULL: there were no two updates without a resumption between them.
-- games_wait: Share of the time of finished games in which they waited for answers of the engine; NULL: nobody sampled.
-- engines_wait: Share of their time in which engines had nothing to do; NULL: they have not reported it twice.
-- generation_s: Seconds from request to answer, of all recorded answers; many are answered at the same time.
-- lost_s: Seconds of generation thrown away by faults; see `faults`.
-- faults: Resumptions and lost rollout workers.
-- checkpoint_bytes: Size of the files of all checkpoints, also of those that are pruned since.
-- Question: What has each run cost?
-- Example: SELECT run_id, cpu_s, sampled_tokens, trained_tokens, learner_waits, lost_s FROM run_costs
WITH used AS (
    SELECT
        run_id,
        sum(cpu_s) FILTER (part IS NULL) AS cpu_s,
        sum(gpu_s) AS gpu_s,
        -- Of a process that is of the record itself, the whole; its parts would count twice.
        coalesce(sum(cpu_s) FILTER (
            CASE WHEN process IN ('archiver', 'processors') THEN part IS NULL
            ELSE part IN ('log', 'archiver', 'processors') END
        ), 0) AS record_cpu_s,
        max(peak_memory_bytes) AS peak_memory_bytes,
        max(peak_gpu_memory_bytes) AS peak_gpu_memory_bytes
    FROM costs GROUP BY run_id
),
spoken AS (
    SELECT
        run_id,
        sum(prompt_tokens)::BIGINT AS prompt_tokens,
        sum(completion_tokens)::BIGINT AS sampled_tokens
    FROM trajectories GROUP BY run_id
),
generated AS (
    SELECT run_id, sum(waited_s) AS generation_s, sum(waited_s) / nullif(sum(duration_ms) / 1000, 0) AS games_wait
    FROM (SELECT run_id, game_id, sum(latency_ms) / 1000 AS waited_s FROM turns GROUP BY ALL)
    JOIN game_outcomes USING (run_id, game_id) GROUP BY run_id
),
paced AS (
    SELECT run_id, duration_ms / 1000 AS busy_s, metrics['completion_tokens'] AS tokens,
        CASE WHEN resumption = lag(resumption) OVER same
            THEN epoch(occurred_at) - epoch(lag(occurred_at) OVER same) END AS since_s
    FROM updates WINDOW same AS (PARTITION BY run_id, model ORDER BY "update")
),
learned AS (
    SELECT
        run_id,
        sum(tokens)::BIGINT AS trained_tokens,
        sum(busy_s) AS learner_s,
        greatest(0, 1 - sum(busy_s) FILTER (since_s IS NOT NULL) / nullif(sum(since_s), 0)) AS learner_waits
    FROM paced GROUP BY run_id
),
reported AS (
    SELECT run_id, least(1, sum(idle_s) / nullif(sum(seconds), 0)) AS engines_wait
    FROM (
        SELECT
            run_id,
            value - lag(value) OVER same AS idle_s,
            epoch(occurred_at) - epoch(lag(occurred_at) OVER same) AS seconds
        FROM metrics WHERE name LIKE 'inference/engine-%/idle_s'
        WINDOW same AS (PARTITION BY run_id, name ORDER BY occurred_at)
    )
    WHERE idle_s BETWEEN 0 AND seconds + 1 -- else another engine of this name
    GROUP BY run_id
),
lost AS (SELECT run_id, sum(lost_s) AS lost_s, count(*) AS faults FROM faults GROUP BY run_id),
kept AS (SELECT run_id, sum(size_bytes)::BIGINT AS checkpoint_bytes FROM checkpoints GROUP BY run_id)
SELECT
    run_id, cpu_s, gpu_s, record_cpu_s, peak_memory_bytes, peak_gpu_memory_bytes,
    prompt_tokens, sampled_tokens, trained_tokens, learner_s, learner_waits, games_wait, engines_wait,
    generation_s, coalesce(lost_s, 0) AS lost_s, coalesce(faults, 0) AS faults, checkpoint_bytes
FROM (SELECT run_id FROM runs)
LEFT JOIN used USING (run_id)
LEFT JOIN spoken USING (run_id)
LEFT JOIN generated USING (run_id)
LEFT JOIN learned USING (run_id)
LEFT JOIN reported USING (run_id)
LEFT JOIN lost USING (run_id)
LEFT JOIN kept USING (run_id)
