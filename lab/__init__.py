"""Development programs, beside the package and not in its wheel: the benchmark (lab/bench) and the pages that are made
from the code (lab/docs.py)."""
