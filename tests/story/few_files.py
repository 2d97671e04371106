"""The command line with few file descriptors, and no way to get more."""

from __future__ import annotations

import resource
import runpy

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (160, 160))
    runpy.run_module("ninelives", run_name="__main__")
