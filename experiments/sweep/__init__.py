"""Many samples: configuration, results folder, order, going on."""
