-- What was spent, by day and by minute (C11). `day` and `minute` count from 1970, in UTC; `cost` is in billionths.
CREATE TABLE usage_days (
  owner text COLLATE "C" NOT NULL,
  day integer NOT NULL,
  model text COLLATE "C" NOT NULL,
  key text COLLATE "C" NOT NULL,
  runs bigint NOT NULL,
  input_tokens bigint NOT NULL,
  output_tokens bigint NOT NULL,
  cached_tokens bigint NOT NULL,
  reasoning_tokens bigint NOT NULL,
  cost bigint NOT NULL,
  PRIMARY KEY (owner, day, model, key)
);
CREATE INDEX usage_days_by_key ON usage_days (key, day);
CREATE INDEX usage_days_by_model ON usage_days (model, day);
CREATE TABLE usage_minutes (
  minute integer NOT NULL,
  owner text COLLATE "C" NOT NULL,
  model text COLLATE "C" NOT NULL,
  key text COLLATE "C" NOT NULL,
  runs bigint NOT NULL,
  tokens bigint NOT NULL,
  PRIMARY KEY (minute, owner, model, key)
);
