-- The ladder as it stood when each update was made: one row per update and model rated by then.
-- run_id: The run.
-- model: Name of the trained model whose update it was; NULL: the run trains one.
-- update: The learner update.
-- updated_at: UTC, of the update.
-- env_id: An environment, or `*` for all together.
-- model_uid: The rated model.
-- mu: Mean skill, TrueSkill points.
-- sigma: Its standard deviation, TrueSkill points.
-- conservative: mu - 3 sigma: the skill it almost surely has.
-- games: Rated games by then.
-- place: 1 is the top of the run's ladder in this environment, by `conservative`; equals share a place.
-- Example: SELECT update, place, model_uid, conservative FROM rating_ladder_history
-- WHERE env_id <> '*' AND place <= 3 ORDER BY update, place
WITH rated AS (
    -- Of ratings of one moment, and of one that comes late, that of the most games counts.
    SELECT DISTINCT
        run_id, env_id, model_uid, occurred_at,
        arg_max(mu, games) OVER so_far AS mu,
        arg_max(sigma, games) OVER so_far AS sigma,
        max(games) OVER so_far AS games
    FROM ratings
    WINDOW so_far AS (PARTITION BY run_id, env_id, model_uid ORDER BY occurred_at)
),
rungs AS (
    SELECT u.run_id, u.model, u.update, u.occurred_at, m.env_id, m.model_uid
    FROM updates AS u
    JOIN (SELECT DISTINCT run_id, env_id, model_uid FROM ratings) AS m USING (run_id)
)
SELECT
    g.run_id, g.model, g.update, g.occurred_at AS updated_at, g.env_id, g.model_uid,
    r.mu, r.sigma,
    r.mu - 3 * r.sigma AS conservative,
    r.games,
    rank() OVER (PARTITION BY g.run_id, g.model, g.update, g.env_id ORDER BY r.mu - 3 * r.sigma DESC) AS place
FROM rungs AS g
ASOF JOIN rated AS r
    ON g.run_id = r.run_id AND g.env_id = r.env_id AND g.model_uid = r.model_uid AND g.occurred_at >= r.occurred_at
