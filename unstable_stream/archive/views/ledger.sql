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
-- Question: Where did steps go that were not trained on?
-- Example: SELECT * FROM ledger
WITH books AS (
    -- Counted without the view `games`, which finds every game's start: numbers are found faster than ids.
    SELECT run_id, count(*) AS started, 0 AS finished, 0 AS abandoned FROM game_starts GROUP BY run_id
    UNION ALL
    SELECT run_id, 0, count(*), 0 FROM game_outcomes GROUP BY run_id
    UNION ALL
    SELECT run_id, count(*), 0, 0
    FROM game_outcomes ANTI JOIN game_starts USING (run_id, split, game_index) GROUP BY run_id
    UNION ALL
    SELECT a.run_id, count(*) FILTER (s.game_id IS NULL), 0, count(*)
    FROM (FROM game_abandonments ANTI JOIN game_outcomes USING (game_id)) AS a
    LEFT JOIN game_starts AS s USING (game_id) GROUP BY a.run_id
),
played AS (
    SELECT
        run_id,
        sum(started)::BIGINT AS started,
        sum(finished)::BIGINT AS finished,
        sum(abandoned)::BIGINT AS abandoned
    FROM books GROUP BY run_id
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
