-- Bounds of the Wilson score interval for k successes in n trials at 95 % (z = 1.959963984540054);
-- Wilson (1927), Journal of the American Statistical Association 22, equation 5. NULL without trials. With
-- centre (p + z²/2n) / (1 + z²/n) and half width z sqrt(p (1 - p) / n + z²/4n²) / (1 + z²/n); the clamp
-- only takes off rounding errors at p = 0 and p = 1.
CREATE OR REPLACE MACRO wilson_centre(k, n) AS (k / n + 1.920729410347062::DOUBLE / n) / (1 + 3.841458820694124::DOUBLE / n);
CREATE OR REPLACE MACRO wilson_half(k, n) AS
    1.959963984540054::DOUBLE * sqrt((k / n) * (1 - k / n) / n + 0.960364705173531::DOUBLE / (n * n)) / (1 + 3.841458820694124::DOUBLE / n);
CREATE OR REPLACE MACRO wilson_low(k, n) AS CASE WHEN n > 0 THEN greatest(0, wilson_centre(k, n) - wilson_half(k, n)) END;
CREATE OR REPLACE MACRO wilson_high(k, n) AS CASE WHEN n > 0 THEN least(1, wilson_centre(k, n) + wilson_half(k, n)) END;
-- How often one game was played, of the digests of n games of the same players in the same seats: n if all of them
-- are one and the same, move by move, as those of players without chance are; else 1. Of such games one counts.
CREATE OR REPLACE MACRO repeats(digests) AS
    CASE WHEN count(digests) = count(*) AND min(digests) = max(digests) THEN count(*) ELSE 1 END;
-- Quantile 0.975 of Student's t, within 0.0003, as `algorithms.intervals.t_quantile`; Abramowitz and Stegun (1964),
-- Handbook of Mathematical Functions, 26.7.5. NULL below 1 degree of freedom.
CREATE OR REPLACE MACRO t_quantile(v) AS CASE
    WHEN v BETWEEN 1 AND 4 THEN [12.706205, 4.302653, 3.182446, 2.776445][v]::DOUBLE
    WHEN v > 4 THEN 1.959964::DOUBLE + 2.372271::DOUBLE / v + 2.822499::DOUBLE / v ** 2 + 2.555850::DOUBLE / v ** 3 + 1.589534::DOUBLE / v ** 4
END;
-- The name of the trained model that a checkpoint is of, from its uid: `ckpt-proposer-000012` is of `proposer`. NULL
-- for the only trained model of a run, and for fixed opponents.
CREATE OR REPLACE MACRO trained_model(uid) AS nullif(regexp_extract(uid, '^ckpt-([A-Za-z][A-Za-z0-9_]*)-[0-9]+$', 1), '');
