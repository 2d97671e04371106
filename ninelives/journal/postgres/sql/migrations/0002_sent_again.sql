-- A request that is sent again looks among those who wait for the same answer (B8, G13).
DROP INDEX runs_waited_for;
CREATE INDEX runs_waited_for ON runs (owner, fingerprint) WHERE waits;
