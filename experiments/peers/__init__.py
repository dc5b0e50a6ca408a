"""PyTorch and JAX compared with forktask's models, in one run."""
