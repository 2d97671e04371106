"""Runs: parse, frames and bodies. The server's own API; any stored run can be read here (G8)."""
