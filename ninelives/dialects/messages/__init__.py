"""Anthropic Messages: parse, frames, bodies and errors."""
