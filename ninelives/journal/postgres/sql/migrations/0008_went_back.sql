-- told_seq: how far readers were shown a run whose log has lost its end since (a failover to a standby that was behind).
-- Autovacuum comes after 2 % of dead rows instead of 20 %: the log is deleted in bulk, and rows of runs change often.
ALTER TABLE runs ADD COLUMN told_seq bigint NOT NULL DEFAULT 0;
ALTER TABLE runs SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);
ALTER TABLE run_log SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05,
  autovacuum_vacuum_insert_scale_factor = 0.1, autovacuum_vacuum_cost_limit = 1000);
