"""Sessions inside of sessions forget what they imported, but extension modules can be imported once only: so, before."""

import forktask.experiments.bounds
import forktask.experiments.measure
import forktask.experiments.run
import forktask.experiments.scaling.testing
import forktask.experiments.user_graph  # noqa: F401
