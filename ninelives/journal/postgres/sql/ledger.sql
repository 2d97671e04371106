-- name: add
-- Adds to what was spent, by day and by minute. The rows are sorted: two processes lock them in the same order.
WITH given AS (
  SELECT * FROM unnest($1::text[], $2::integer[], $3::text[], $4::text[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[],
    $9::bigint[], $10::bigint[], $11::bigint[]) AS t (owner, minute, model, key, runs, input_tokens, output_tokens, cached_tokens,
    reasoning_tokens, cost, errors)
), days AS (
  INSERT INTO usage_days AS d (owner, day, model, key, runs, input_tokens, output_tokens, cached_tokens, reasoning_tokens, cost,
    errors)
  SELECT owner, minute / 1440, model, key, sum(runs), sum(input_tokens), sum(output_tokens), sum(cached_tokens),
    sum(reasoning_tokens), sum(cost), sum(errors) FROM given GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
  ON CONFLICT (owner, day, model, key) DO UPDATE SET runs = d.runs + excluded.runs,
    input_tokens = d.input_tokens + excluded.input_tokens, output_tokens = d.output_tokens + excluded.output_tokens,
    cached_tokens = d.cached_tokens + excluded.cached_tokens,
    reasoning_tokens = d.reasoning_tokens + excluded.reasoning_tokens, cost = d.cost + excluded.cost,
    errors = d.errors + excluded.errors
), minutes AS (
  INSERT INTO usage_minutes AS m (minute, owner, model, key, runs, tokens)
  SELECT minute, owner, model, key, sum(runs), sum(input_tokens + output_tokens) FROM given
  GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
  ON CONFLICT (minute, owner, model, key) DO UPDATE SET runs = m.runs + excluded.runs, tokens = m.tokens + excluded.tokens
)
DELETE FROM usage_minutes WHERE ctid IN (SELECT ctid FROM usage_minutes WHERE minute < $12 FOR UPDATE SKIP LOCKED);

-- name: days
-- What was spent by day, owner and model.
SELECT owner, day, model, sum(runs)::bigint, sum(input_tokens)::bigint, sum(output_tokens)::bigint, sum(cached_tokens)::bigint,
  sum(reasoning_tokens)::bigint, sum(cost)::bigint, sum(errors)::bigint
FROM usage_days WHERE ($1::text IS NULL OR owner = $1) AND day >= $2 AND day < $3
GROUP BY day, owner, model ORDER BY day DESC, owner, model;

-- name: owner_days
-- What an owner spent today and this month.
SELECT COALESCE(sum(input_tokens + output_tokens) FILTER (WHERE day = $2), 0)::bigint,
  COALESCE(sum(cost) FILTER (WHERE day = $2), 0)::bigint, COALESCE(sum(input_tokens + output_tokens), 0)::bigint,
  COALESCE(sum(cost), 0)::bigint FROM usage_days WHERE owner = $1 AND day >= $3;

-- name: key_days
-- What was spent with a key today and this month.
SELECT COALESCE(sum(input_tokens + output_tokens) FILTER (WHERE day = $2), 0)::bigint,
  COALESCE(sum(cost) FILTER (WHERE day = $2), 0)::bigint, COALESCE(sum(input_tokens + output_tokens), 0)::bigint,
  COALESCE(sum(cost), 0)::bigint FROM usage_days WHERE key = $1 AND day >= $3;

-- name: model_days
-- What was spent with a model today and this month.
SELECT COALESCE(sum(input_tokens + output_tokens) FILTER (WHERE day = $2), 0)::bigint,
  COALESCE(sum(cost) FILTER (WHERE day = $2), 0)::bigint, COALESCE(sum(input_tokens + output_tokens), 0)::bigint,
  COALESCE(sum(cost), 0)::bigint FROM usage_days WHERE model = $1 AND day >= $3;

-- name: owner_minutes
-- What an owner spent in the last minutes.
SELECT minute, sum(runs)::bigint, sum(tokens)::bigint FROM usage_minutes WHERE minute >= $2 AND owner = $1
GROUP BY minute ORDER BY minute;

-- name: key_minutes
-- What was spent with a key in the last minutes.
SELECT minute, sum(runs)::bigint, sum(tokens)::bigint FROM usage_minutes WHERE minute >= $2 AND key = $1
GROUP BY minute ORDER BY minute;

-- name: model_minutes
-- What was spent with a model in the last minutes.
SELECT minute, sum(runs)::bigint, sum(tokens)::bigint FROM usage_minutes WHERE minute >= $2 AND model = $1
GROUP BY minute ORDER BY minute;
