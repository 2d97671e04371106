-- How many runs failed, by day.
ALTER TABLE usage_days ADD COLUMN errors INTEGER NOT NULL DEFAULT 0;
