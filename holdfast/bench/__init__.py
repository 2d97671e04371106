"""`holdfast bench`: what Holdfast adds to an upstream, beside a direct line and a store-less floor, in one run.

Rooms: `load.c` makes the load and is both ends of it (`slow` where there is no compiler, `generator` chooses);
`machine` knows processes and cores, `cost` and `counters` what they spend; `targets` knows how to start what is
measured; `loads` says what is asked of it; `client`, `readers`, `length`, `history` and `idle` ask it and give one
`figures.Figure` each; `program` goes through all of them; `tables`, `plots` and `page` show, `judge` judges, `compare`
compares. Nothing here imports the server: it is measured from outside, as its users see it."""
