"""The task graph of a step, or of some layers of it, as a picture."""
