"""Event logs: what each worker did at every moment of a run, and why it waited."""
