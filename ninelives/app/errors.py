"""Errors of a start. Owns: the exceptions whose text a person reads when a server does not start. Refuses to know: who
prints them."""

from __future__ import annotations


class StartError(Exception):
    """The server cannot start. The text says why and what to do."""


class ConfigError(StartError):
    """The server cannot start as configured. The text names the option, where it came from, and what is allowed."""
