"""Chat Completions: parse, frames and bodies."""
