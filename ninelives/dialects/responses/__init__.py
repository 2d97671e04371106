"""Responses: parse, frames and bodies."""
