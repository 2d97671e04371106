"""Conversations: parse, items and bodies. Items that a client adds are a run without any step of an agent."""
