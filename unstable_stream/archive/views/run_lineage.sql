-- Where each run comes from: itself, the run it was forked from, that one's parent and so on.
-- run_id: The run.
-- distance: 0 the run itself, 1 its parent, 2 its parent's parent, …
-- ancestor_run_id: The run at that distance.
-- ancestor_name: Its display name; NULL: it is not in this archive.
-- at_update: The ancestor's update at which the line leaves it; NULL for the run itself.
-- Example: SELECT run_id, distance, ancestor_run_id, at_update FROM run_lineage ORDER BY run_id, distance
WITH RECURSIVE line AS (
    SELECT run_id, 0 AS distance, run_id AS ancestor_run_id, NULL::INTEGER AS at_update FROM runs
    UNION ALL
    SELECT line.run_id, line.distance + 1, r.parent_run_id, r.parent_update
    FROM line JOIN runs AS r ON r.run_id = line.ancestor_run_id
    WHERE r.parent_run_id IS NOT NULL
)
SELECT line.run_id, line.distance, line.ancestor_run_id, r.name AS ancestor_name, line.at_update
FROM line LEFT JOIN runs AS r ON r.run_id = line.ancestor_run_id
