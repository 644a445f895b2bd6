-- Who beats whom: one row per model and opponent that met. Ranks decide, so in games of three and more each
-- pair of seats counts, and in games of teams each pair of a model's team and another. A model against itself is left out: it wins as often as it loses. Mirrored rows are
-- both there: (A, B) and (B, A).
-- run_id: The run.
-- split: `train` or `eval`.
-- env_id: TextArena environment.
-- model_uid: The row: checkpoint or fixed opponent.
-- opponent_uid: The column: whom it met.
-- games: Finished games; of three and more seats, pairs of seats.
-- wins: The row model ranked better.
-- draws: Both ranked the same.
-- losses: The row model ranked worse.
-- mean_reward: The row model's mean final reward.
-- win_rate: wins / games, 0 to 1.
-- independent_games: Games that count for intervals: those of players in the same seats that are all one and the same,
-- move by move, count once.
-- independent_score: Mean over these of 1 for a win, 1/2 for a draw and 0 for a loss.
-- win_rate_low: Lower bound of the 95 % Wilson interval.
-- win_rate_high: Upper bound of the 95 % Wilson interval.
-- Example: PIVOT (SELECT model_uid, opponent_uid, win_rate FROM payoff_matrix WHERE split = 'train')
-- ON opponent_uid USING any_value(win_rate) ORDER BY model_uid
WITH pairs AS (
    -- A seat of a game of two knows whom it met and how it ended; to join it with the other takes ten times as long.
    SELECT run_id, split, env_id, model_uid, seat, opponent AS opponent_uid, reward, result, game_digest
    FROM seats
    WHERE opponent <> model_uid AND NOT contains(opponent, ', ') AND team IS NULL AND branched IS NOT TRUE
    UNION ALL
    SELECT
        a.run_id, a.split, a.env_id, a.model_uid, a.seat, b.model_uid, a.reward,
        CASE WHEN a."rank" < b."rank" THEN 'win' WHEN a."rank" = b."rank" THEN 'draw' ELSE 'loss' END,
        a.game_digest
    FROM seats AS a
    JOIN seats AS b ON a.game_id = b.game_id AND a.model_uid <> b.model_uid
    WHERE (contains(a.opponent, ', ') OR a.team IS NOT NULL) AND a.counts IS NOT FALSE AND b.counts IS NOT FALSE
        AND a.branched IS NOT TRUE
        AND (a.team IS NULL OR b.team IS NULL OR a.team <> b.team)
), by_seat AS (
    SELECT
        run_id, split, env_id, model_uid, opponent_uid,
        count(*) AS games,
        count(*) FILTER (result = 'win') AS wins,
        count(*) FILTER (result = 'draw') AS draws,
        count(*) FILTER (result = 'loss') AS losses,
        sum(reward) AS reward,
        repeats(game_digest) AS times
    FROM pairs
    GROUP BY run_id, split, env_id, model_uid, opponent_uid, seat
)
SELECT
    run_id, split, env_id, model_uid, opponent_uid,
    sum(games)::BIGINT AS games,
    sum(wins)::BIGINT AS wins,
    sum(draws)::BIGINT AS draws,
    sum(losses)::BIGINT AS losses,
    sum(reward) / sum(games) AS mean_reward,
    sum(wins) / sum(games) AS win_rate,
    sum(games / times)::BIGINT AS independent_games,
    sum((wins + draws / 2) / times) / sum(games / times) AS independent_score,
    wilson_low(sum(wins / times), sum(games / times)) AS win_rate_low,
    wilson_high(sum(wins / times), sum(games / times)) AS win_rate_high
FROM by_seat
GROUP BY run_id, split, env_id, model_uid, opponent_uid
