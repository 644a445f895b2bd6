-- The latest rating of every model, per environment and (`*`) over all. Sort by `conservative`.
-- run_id: The run.
-- env_id: An environment, or `*` for all together.
-- model_uid: The rated model.
-- mu: Mean skill, TrueSkill points.
-- sigma: Its standard deviation, TrueSkill points.
-- conservative: mu - 3 sigma: the skill it almost surely has.
-- games: Rated games.
-- rated_at: UTC, of the last rated game.
-- Question: Who is best?
-- Example: SELECT model_uid, conservative, mu, sigma, games FROM rating_ladder
-- WHERE env_id <> '*' ORDER BY conservative DESC
SELECT
    run_id, env_id, model_uid,
    arg_max(mu, games) AS mu,
    arg_max(sigma, games) AS sigma,
    arg_max(mu - 3 * sigma, games) AS conservative,
    max(games) AS games,
    max(occurred_at) AS rated_at
FROM ratings
GROUP BY run_id, env_id, model_uid
