"""Training and inference for real: data, checkpoints, curves."""
