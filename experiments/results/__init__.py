"""Results folders: their rows, and files that are written as a whole."""
