"""What owners, keys and profiles may use, and what they have used."""
