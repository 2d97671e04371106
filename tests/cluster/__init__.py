"""Several replicas on one PostgreSQL, behind a balancer, with everything that can die dying. `python -m tests.cluster`
is the whole programme (make test-cluster); test_cluster.py has a short trial of each for make test."""
