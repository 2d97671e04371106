-- How many runs failed, by day. Replicas of the release before do not count them.
ALTER TABLE usage_days ADD COLUMN errors bigint NOT NULL DEFAULT 0;
