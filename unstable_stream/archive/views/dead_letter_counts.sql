-- What consumers could not accept, by kind; the records themselves are in `dead_letters`.
-- run_id: The consumer's run; empty if it serves all.
-- consumer: The group that rejected it.
-- topic: Where the records are.
-- error: The error class.
-- letters: Records set aside.
-- first_at: UTC, time of the first record.
-- last_at: UTC, time of the last record.
-- example: The reason in full, of the last one.
-- Example: SELECT consumer, topic, error, letters, example FROM dead_letter_counts ORDER BY letters DESC
SELECT
    run_id, consumer, topic,
    split_part(reason, ':', 1) AS error,
    count(*) AS letters,
    min(occurred_at) AS first_at,
    max(occurred_at) AS last_at,
    arg_max(reason, (occurred_at, "partition", "offset")) AS example
FROM dead_letters
GROUP BY ALL
