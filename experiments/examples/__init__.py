"""Small graphs of one's own, each checked against plain code: `python -m forktask.experiments.examples.heat`."""
