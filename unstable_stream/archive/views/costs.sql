-- What the processes of each run have used: a row for each process, and one for each part that its CPU-seconds
-- can be divided into. Each restart begins to count anew, and all add up; a process that was killed has lost
-- what came after its last report, at most a minute.
-- run_id: The run.
-- process: `learner`, `engine-0`, `rollout-0`, `collector`, `processors`, `archiver`, …; `inline`: the one process of a run without others.
-- part: NULL: the process as a whole. `learner`, `engine`, `environments`, `log`, `archiver`, `processors`, `loading`, or `rest`: what cannot be told apart, as helper threads of PyTorch and DuckDB, and the rest of the event loop.
-- incarnations: How many processes have had this name; NULL in rows of parts, as in the columns below but the CPU-seconds.
-- wall_s: Seconds for which they ran.
-- cpu_s: CPU-seconds.
-- gpu_s: GPU-seconds: seconds for which they held a GPU, used or idle, times their share of GPUs.
-- peak_memory_bytes: Most memory that was resident in one of them.
-- peak_gpu_memory_bytes: Most memory of GPUs that PyTorch had allocated in one of them; NULL: it used none.
-- Example: SELECT process, part, cpu_s, peak_memory_bytes FROM costs ORDER BY process, part NULLS FIRST
WITH lives AS (
    SELECT
        run_id, process, incarnation,
        max(wall_s) AS wall_s,
        max(cpu_s) AS cpu_s,
        max(gpu_s) AS gpu_s,
        max(peak_memory_bytes) AS peak_memory_bytes,
        max(peak_gpu_memory_bytes) AS peak_gpu_memory_bytes
    FROM process_costs GROUP BY ALL
),
told AS (
    SELECT run_id, process, incarnation, unnest(map_entries(parts)) AS told FROM process_costs
),
parts AS (
    SELECT run_id, process, told.key AS part, sum(cpu_s) AS cpu_s
    FROM (
        SELECT run_id, process, incarnation, told.key AS key, max(told.value) AS cpu_s FROM told GROUP BY ALL
    ) AS told(run_id, process, incarnation, key, cpu_s) GROUP BY ALL
),
whole AS (
    SELECT
        run_id, process,
        count(*) AS incarnations,
        sum(wall_s) AS wall_s,
        sum(cpu_s) AS cpu_s,
        sum(gpu_s) AS gpu_s,
        max(peak_memory_bytes) AS peak_memory_bytes,
        max(peak_gpu_memory_bytes) AS peak_gpu_memory_bytes
    FROM lives GROUP BY ALL
)
SELECT run_id, process, NULL AS part, * EXCLUDE (run_id, process) FROM whole
UNION ALL BY NAME
SELECT run_id, process, part, cpu_s FROM parts
UNION ALL BY NAME
SELECT run_id, process, 'rest' AS part, greatest(0, any_value(whole.cpu_s) - sum(parts.cpu_s)) AS cpu_s
FROM whole JOIN parts USING (run_id, process) GROUP BY ALL
