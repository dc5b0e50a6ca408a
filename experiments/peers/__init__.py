"""PyTorch beside our models, in one run."""
