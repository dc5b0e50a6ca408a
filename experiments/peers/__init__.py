"""PyTorch, JAX and llm.c compared with forktask's models, in one run."""
