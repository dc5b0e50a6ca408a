"""Linear layers of tokens."""
