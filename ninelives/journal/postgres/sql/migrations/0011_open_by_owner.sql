-- The open runs of each owner: to count them, and to let owners take turns.
CREATE INDEX runs_open_by_owner ON runs (owner, n) WHERE NOT ended;
