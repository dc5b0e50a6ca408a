"""Scaling tests for CI: a pytest plugin in three tiers (exact, model, clock), and the gate between two commits."""
