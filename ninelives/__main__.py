"""python -m ninelives."""

from ninelives.cli import main

main()
