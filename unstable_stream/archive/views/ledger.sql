-- The books of each run, as far as the archive has read: games started = finished + abandoned + in flight,
-- steps produced = trained + dropped + pending.
-- run_id: The run.
-- games_started: Games decided on.
-- games_finished: Games with an outcome.
-- games_abandoned: Games given up.
-- games_in_flight: Neither finished nor abandoned.
-- steps_produced: Steps.
-- steps_trained: Steps an update trained on.
-- steps_dropped: Steps an update dropped, with a reason.
-- steps_pending: Neither trained on nor dropped yet.
-- Example: SELECT * FROM ledger
WITH played AS (
    SELECT
        run_id,
        count(*) AS started,
        count(*) FILTER (state = 'finished') AS finished,
        count(*) FILTER (state = 'abandoned') AS abandoned
    FROM games GROUP BY run_id
),
produced AS (SELECT run_id, count(*) AS steps FROM steps GROUP BY run_id),
used AS (
    SELECT
        run_id,
        count(*) FILTER (fate = 'trained') AS trained,
        count(*) FILTER (fate = 'dropped') AS dropped
    FROM update_steps GROUP BY run_id
)
SELECT
    run_id,
    coalesce(started, 0) AS games_started,
    coalesce(finished, 0) AS games_finished,
    coalesce(abandoned, 0) AS games_abandoned,
    games_started - games_finished - games_abandoned AS games_in_flight,
    coalesce(steps, 0) AS steps_produced,
    coalesce(trained, 0) AS steps_trained,
    coalesce(dropped, 0) AS steps_dropped,
    steps_produced - steps_trained - steps_dropped AS steps_pending
FROM played
FULL JOIN produced USING (run_id)
FULL JOIN used USING (run_id)
