-- What was lost where a run was killed or stopped, or a rollout worker died: the games that were being played
-- then are played again from their beginning. Nothing is lost of games that had ended.
-- run_id: The run.
-- occurred_at: UTC, when the run went on, or when the loss of the worker was seen.
-- fault: `resumed`, or the rollout worker that was lost or started anew.
-- games: Games that were played again, or given up, because of it.
-- lost_s: Seconds for which these games had been played until the last record of playing before it, together; nearly all of a game is waiting for the model's answers, so these are seconds of generation thrown away. A crash is found late by up to the five seconds between two reports of an engine.
-- Example: SELECT occurred_at, fault, games, lost_s FROM faults ORDER BY occurred_at
WITH resumed AS (SELECT run_id, occurred_at, 'resumed' AS fault FROM run_events WHERE type = 'run-resumed'),
workers AS (
    -- A worker that is added again without having been lost ended with the process that had started it.
    SELECT run_id, occurred_at, part AS fault, change, lag(change) OVER same AS before, lag(occurred_at) OVER same AS before_at
    FROM part_changes WHERE part LIKE 'rollout-%' AND change IN ('added', 'lost')
    WINDOW same AS (PARTITION BY run_id, part ORDER BY occurred_at)
),
ends AS (
    SELECT * FROM resumed
    UNION ALL
    SELECT run_id, occurred_at, fault FROM workers
    WHERE change = 'lost' OR (before = 'added' AND NOT EXISTS (
        FROM resumed WHERE resumed.run_id = workers.run_id AND resumed.occurred_at BETWEEN workers.before_at AND workers.occurred_at
    ))
),
games AS (
    -- The playing that is recorded began when it ended less its duration; of a game given up nothing is.
    SELECT s.run_id, s.game_id, s.started_at,
        coalesce(o.finished_at - to_milliseconds(o.duration_ms::BIGINT), a.abandoned_at) AS began_at
    FROM game_starts AS s
    LEFT JOIN game_outcomes AS o USING (game_id)
    LEFT JOIN game_abandonments AS a USING (game_id)
    WHERE s.run_id IN (SELECT run_id FROM ends)
),
signs AS (
    SELECT run_id, started_at AS sign_at FROM game_starts
    UNION ALL
    SELECT run_id, finished_at FROM game_outcomes
    UNION ALL
    SELECT run_id, occurred_at FROM metrics WHERE source LIKE 'engine-%'
),
last AS (
    SELECT run_id, occurred_at, fault, max(sign_at) AS sign_at
    FROM ends LEFT JOIN (FROM signs SEMI JOIN ends USING (run_id)) AS signs USING (run_id)
    WHERE sign_at < occurred_at GROUP BY ALL
),
interrupted AS (
    SELECT last.*, game_id,
        greatest(0, epoch(sign_at) - epoch(greatest(started_at, coalesce(lag(occurred_at) OVER (PARTITION BY run_id, game_id ORDER BY occurred_at), started_at)))) AS lost_s
    FROM last JOIN games USING (run_id) WHERE started_at < occurred_at AND (began_at >= occurred_at OR began_at IS NULL)
)
SELECT e.run_id, e.occurred_at, e.fault, count(game_id) AS games, coalesce(sum(lost_s), 0) AS lost_s
FROM ends AS e LEFT JOIN interrupted AS i USING (run_id, occurred_at, fault) GROUP BY ALL
