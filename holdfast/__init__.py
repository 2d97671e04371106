"""Holdfast: the agent server you can kill -9."""

__version__ = "0.1.0"
