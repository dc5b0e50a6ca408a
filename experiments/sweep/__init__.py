"""Many samples: configuration, results folder, order, and continuing an interrupted sweep."""
