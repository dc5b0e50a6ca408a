"""Attention of tokens."""
