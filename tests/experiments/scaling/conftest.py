"""Extension modules, imported before any session inside a session: those forget their imports, and import twice."""

import forktask.experiments.bounds.bounds
import forktask.experiments.sampling.measure
import forktask.experiments.scaling.testing
import forktask.experiments.sweep.runner
import forktask.public  # noqa: F401
