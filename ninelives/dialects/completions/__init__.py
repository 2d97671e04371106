"""Completions, the legacy API: parse, frames and bodies. A thin projection of a chat with one user message (G17)."""
