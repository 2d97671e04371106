-- name: add_day
-- Adds to what was spent on a day. The values are the fields of a Spending.
INSERT INTO usage_days (owner, day, model, key, runs, input_tokens, output_tokens, cached_tokens, reasoning_tokens, cost,
  errors) VALUES (?1, ?4 / 86400000, ?2, ?3, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
ON CONFLICT DO UPDATE SET runs = runs + ?5, input_tokens = input_tokens + ?6, output_tokens = output_tokens + ?7,
  cached_tokens = cached_tokens + ?8, reasoning_tokens = reasoning_tokens + ?9, cost = cost + ?10,
  errors = errors + ?11;

-- name: add_minute
-- Adds to what was spent in a minute. The values are the fields of a Spending up to output_tokens.
INSERT INTO usage_minutes (minute, owner, model, key, runs, tokens) VALUES (?4 / 60000, ?1, ?2, ?3, ?5, ?6 + ?7)
ON CONFLICT DO UPDATE SET runs = runs + ?5, tokens = tokens + ?6 + ?7;

-- name: drop_minutes
-- Drops counts by the minute that nobody needs any more.
DELETE FROM usage_minutes WHERE minute < ?1;

-- name: days
-- What was spent by day, owner and model.
SELECT owner, day, model, SUM(runs), SUM(input_tokens), SUM(output_tokens), SUM(cached_tokens), SUM(reasoning_tokens), SUM(cost),
  SUM(errors)
FROM usage_days WHERE (?1 IS NULL OR owner = ?1) AND day >= ?2 AND day < ?3
GROUP BY day, owner, model ORDER BY day DESC, owner, model;

-- name: owner_days
-- What an owner spent today and this month.
SELECT COALESCE(SUM((input_tokens + output_tokens) * (day = ?2)), 0), COALESCE(SUM(cost * (day = ?2)), 0),
  COALESCE(SUM(input_tokens + output_tokens), 0), COALESCE(SUM(cost), 0) FROM usage_days WHERE owner = ?1 AND day >= ?3;

-- name: key_days
-- What was spent with a key today and this month.
SELECT COALESCE(SUM((input_tokens + output_tokens) * (day = ?2)), 0), COALESCE(SUM(cost * (day = ?2)), 0),
  COALESCE(SUM(input_tokens + output_tokens), 0), COALESCE(SUM(cost), 0) FROM usage_days WHERE key = ?1 AND day >= ?3;

-- name: model_days
-- What was spent with a model today and this month.
SELECT COALESCE(SUM((input_tokens + output_tokens) * (day = ?2)), 0), COALESCE(SUM(cost * (day = ?2)), 0),
  COALESCE(SUM(input_tokens + output_tokens), 0), COALESCE(SUM(cost), 0) FROM usage_days WHERE model = ?1 AND day >= ?3;

-- name: owner_minutes
-- What an owner spent in the last minutes.
SELECT minute, SUM(runs), SUM(tokens) FROM usage_minutes WHERE minute >= ?2 AND owner = ?1 GROUP BY minute ORDER BY minute;

-- name: key_minutes
-- What was spent with a key in the last minutes.
SELECT minute, SUM(runs), SUM(tokens) FROM usage_minutes WHERE minute >= ?2 AND key = ?1 GROUP BY minute ORDER BY minute;

-- name: model_minutes
-- What was spent with a model in the last minutes.
SELECT minute, SUM(runs), SUM(tokens) FROM usage_minutes WHERE minute >= ?2 AND model = ?1 GROUP BY minute ORDER BY minute;
