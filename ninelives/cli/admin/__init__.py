"""Commands for admin keys: keys and the audit log."""
