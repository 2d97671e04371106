"""The worst requests that a stranger or a user can send, against a real server, while another process asks for its
health. `python -m tests.hostile` runs them all and prints a table; test_hostile.py is a short version."""
