"""Softmax, cross-entropy, and the sums kept for each step."""
