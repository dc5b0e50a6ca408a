"""Sessions inside of sessions forget what they imported, but extension modules can be imported once only: so, before."""

import forktask.experiments.analysis.bounds
import forktask.experiments.sampling.measure
import forktask.experiments.scaling.testing
import forktask.experiments.sweep.run
import forktask.experiments.user_graph  # noqa: F401
