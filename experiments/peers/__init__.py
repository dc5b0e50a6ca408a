"""PyTorch beside forktask's models, in one run."""
