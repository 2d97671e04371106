-- What was spent, by day and by minute (C11). `day` and `minute` count from 1970, in UTC; `cost` is in billionths.
CREATE TABLE usage_days (
  owner TEXT NOT NULL,
  day INTEGER NOT NULL,
  model TEXT NOT NULL,
  key TEXT NOT NULL,
  runs INTEGER NOT NULL,
  input_tokens INTEGER NOT NULL,
  output_tokens INTEGER NOT NULL,
  cached_tokens INTEGER NOT NULL,
  reasoning_tokens INTEGER NOT NULL,
  cost INTEGER NOT NULL,
  PRIMARY KEY (owner, day, model, key)
) WITHOUT ROWID;
CREATE INDEX usage_days_by_key ON usage_days (key, day);
CREATE INDEX usage_days_by_model ON usage_days (model, day);
CREATE TABLE usage_minutes (
  minute INTEGER NOT NULL,
  owner TEXT NOT NULL,
  model TEXT NOT NULL,
  key TEXT NOT NULL,
  runs INTEGER NOT NULL,
  tokens INTEGER NOT NULL,
  PRIMARY KEY (minute, owner, model, key)
) WITHOUT ROWID;
