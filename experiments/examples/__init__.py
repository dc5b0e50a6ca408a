"""Small graphs of one's own, each checked against a plain computation: `python -m forktask.experiments.examples.heat`."""
