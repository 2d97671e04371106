"""What `ninelives import-hermes` does. Owns: the data directory of hermes-agent as it is read (reading.py), what
becomes of its configuration (configuration.py), and how responses and sessions get into a store (writing.py)."""
