-- Records that a run may have had and that the archive lacks, because the log deleted them before they were archived. A run is left out if it began behind them or had ended before.
-- run_id: The run.
-- log_id: The log.
-- topic: Topic.
-- partition: Partition of the topic.
-- first_offset: The first missing offset since the run began.
-- next_offset: The offset after the last missing one. On Kafka not every offset is a record.
-- Example: SELECT run_id, topic, "partition", first_offset, next_offset FROM missing_of_runs
WITH begun AS (
    SELECT run_id, any_value(json_extract_string(value, '$.log_id')) AS of_log,
        any_value(json_extract(value, '$.start_offsets')) AS starts
    FROM events WHERE topic = 'runs' AND type = 'run-started' GROUP BY run_id
), ends AS (
    SELECT run_id, max(timestamp_ms) FILTER (type = 'run-finished') AS ended_ms,
        max(timestamp_ms) FILTER (type <> 'run-finished') AS resumed_ms
    FROM events WHERE topic = 'runs' AND type IS NOT NULL GROUP BY run_id
), of_runs AS (
    SELECT b.run_id, m.*,
        coalesce(
            CAST(json_extract(b.starts, '$."' || m.topic || '"[' || m."partition" || ']') AS BIGINT), 0
        ) AS start,
        CASE WHEN e.ended_ms >= e.resumed_ms THEN e.ended_ms END AS ended_ms
    FROM missing_records AS m
    JOIN begun AS b ON coalesce(b.of_log, '') IN ('', m.log_id)
    JOIN ends AS e USING (run_id)
)
SELECT run_id, log_id, topic, "partition", greatest(first_offset, start) AS first_offset, next_offset
FROM of_runs
WHERE next_offset > start AND (ended_ms IS NULL OR since_ms IS NULL OR since_ms <= ended_ms)
ORDER BY ALL
