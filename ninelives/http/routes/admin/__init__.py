"""Routes for admin keys only: keys and the audit log."""
