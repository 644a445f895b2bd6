-- How each checkpoint did, by seat and opponent. A draw is neither won nor lost.
-- run_id: The run.
-- split: `train` or `eval`.
-- env_id: TextArena environment.
-- model_uid: The checkpoint.
-- policy_version: Learner update that made it; 0 the initial policy.
-- seat: 0-based player number.
-- opponent: The models of the other seats, those of its team left out; sorted.
-- games: Finished games.
-- wins: Games won.
-- draws: Games drawn.
-- losses: Games lost.
-- win_rate: wins / games, 0 to 1.
-- independent_games: Games that count for the interval: 1 if all are one and the same, move by move, as those of players
-- without chance are.
-- win_rate_low: Lower bound of the 95 % Wilson interval.
-- win_rate_high: Upper bound of the 95 % Wilson interval.
-- mean_reward: Mean final reward.
-- Question: Which checkpoint wins how often, from which seat?
-- Example: SELECT env_id, policy_version, seat, opponent, games, win_rate, win_rate_low, win_rate_high
-- FROM win_rates WHERE split = 'eval' ORDER BY env_id, policy_version, seat, opponent
SELECT
    run_id, split, env_id, model_uid, policy_version, seat, opponent,
    count(*) AS games,
    count(*) FILTER (result = 'win') AS wins,
    count(*) FILTER (result = 'draw') AS draws,
    count(*) FILTER (result = 'loss') AS losses,
    wins / games AS win_rate,
    games // repeats(game_digest) AS independent_games,
    wilson_low(win_rate * independent_games, independent_games) AS win_rate_low,
    wilson_high(win_rate * independent_games, independent_games) AS win_rate_high,
    avg(reward) AS mean_reward
FROM seats
WHERE kind = 'checkpoint' AND branched IS NOT TRUE
GROUP BY run_id, split, env_id, model_uid, policy_version, seat, opponent
