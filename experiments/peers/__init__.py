"""PyTorch and llm.c compared with forktask's models, in one run."""
