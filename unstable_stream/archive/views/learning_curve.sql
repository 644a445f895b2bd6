-- The curve that should go up: how each policy version did, over all seats and opponents. In the eval split
-- the checkpoint under evaluation counts, in the train split the seats trained on; games of a model against
-- itself are left out, since they are won as often as they are lost.
-- run_id: The run.
-- split: `train` or `eval`.
-- env_id: TextArena environment.
-- model: Name of the trained model; NULL: the run trains one.
-- policy_version: Learner update that made the policy; 0 the initial policy.
-- games: Seats played; those of one model in one team count once.
-- independent_games: Those that count for the interval: games against an opponent in the same seats that are all one and
-- the same, move by move, count once.
-- win_rate: Share won, 0 to 1.
-- win_rate_low: Lower bound of the 95 % Wilson interval.
-- win_rate_high: Upper bound of the 95 % Wilson interval.
-- draw_rate: Share drawn, 0 to 1.
-- mean_reward: Mean final reward.
-- mean_turns: Mean moves of the seat in a game.
-- invalid_rate: Share of games that a seat of the policy ended by an invalid move, 0 to 1.
-- Question: Does the curve go up?
-- Example: SELECT policy_version, games, win_rate, win_rate_low, win_rate_high, mean_reward FROM learning_curve
-- WHERE split = 'eval' ORDER BY policy_version
WITH by_seat AS (
    SELECT
        s.run_id, s.split, s.env_id, s.model_uid, s.policy_version,
        count(*) AS seats,
        count(*) FILTER (s.counts IS NOT FALSE) AS games,
        count(*) FILTER (s.result = 'win' AND s.counts IS NOT FALSE) AS wins,
        count(*) FILTER (s.result = 'draw' AND s.counts IS NOT FALSE) AS draws,
        sum(s.reward) AS reward,
        sum(s.turns) AS turns,
        count(*) FILTER (s.ended_invalid) AS invalid,
        repeats(s.game_digest) AS times
    FROM seats AS s
    JOIN game_outcomes AS o USING (game_id)
    WHERE s.kind = 'checkpoint' AND s.branched IS NOT TRUE
        AND CASE WHEN s.split = 'eval' THEN s.model_uid = o.evaluated_uid ELSE s.trained END
        AND list_distinct(string_split(s.opponent, ', ')) IS DISTINCT FROM [s.model_uid]
    GROUP BY s.run_id, s.split, s.env_id, s.model_uid, s.policy_version, s.opponent, s.seat
)
SELECT
    run_id, split, env_id, trained_model(model_uid) AS model, policy_version,
    sum(games)::BIGINT AS games,
    round(sum(games / times))::BIGINT AS independent_games,
    sum(wins) / sum(games) AS win_rate,
    wilson_low(sum(wins / times), sum(games / times)) AS win_rate_low,
    wilson_high(sum(wins / times), sum(games / times)) AS win_rate_high,
    sum(draws) / sum(games) AS draw_rate,
    sum(reward) / sum(seats) AS mean_reward,
    sum(turns) / sum(seats) AS mean_turns,
    sum(invalid) / sum(games) AS invalid_rate
FROM by_seat
GROUP BY run_id, split, env_id, model, policy_version
