"""The conformance kit: whether a model runs every legal plan as it must."""
