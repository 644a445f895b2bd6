-- One row per branched position, players and seat: what it is worth if these players go on from it.
-- run_id: The run that played on.
-- parent_game_id: The game that has the position.
-- turn: The number of its moves before the position.
-- tried: The moves that were tried from there, before the players went on, JSON; `[]`: none.
-- seat: 0-based player number.
-- player: Who went on in this seat.
-- players: All who went on, by seat.
-- games: How often it was played on.
-- value: Mean reward of the seat.
-- standard_error: Of the value; 0 where all games ended alike.
-- rewards: Of each of these games.
-- Example: SELECT parent_game_id, turn, tried, player, games, value FROM branches WHERE seat = 0 ORDER BY ALL
WITH positions AS (
    SELECT
        o.game_id, o.position->>'$.game_id' AS parent_game_id, CAST(o.position->>'$.turn' AS INTEGER) AS turn,
        to_json(list(a.action ORDER BY a.game_turn) FILTER (
            a.game_turn >= CAST(o.position->>'$.turn' AS INTEGER)
            AND a.game_turn < CAST(o.position->>'$.moves' AS INTEGER)
        )) AS tried,
        any_value(o.models) AS players
    FROM game_outcomes AS o
    JOIN actions AS a USING (game_id)
    WHERE o.position IS NOT NULL
    GROUP BY o.game_id, parent_game_id, turn
)
SELECT
    s.run_id,
    p.parent_game_id,
    p.turn,
    coalesce(p.tried, '[]') AS tried,
    s.seat,
    s.model_uid AS player,
    p.players,
    count(*) AS games,
    avg(s.reward) AS value,
    coalesce(stddev_samp(s.reward) / sqrt(count(*)), 0) AS standard_error,
    list(s.reward ORDER BY s.game_id) AS rewards
FROM positions AS p
JOIN seats AS s USING (game_id)
GROUP BY ALL
