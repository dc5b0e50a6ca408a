"""Colours of states and number of dependence arrows in all formats of traces."""

MAX_ARROWS = 100_000  # of a model
# Red, green and blue of each of STATES.
STATE_COLORS = (
    (0, 0, 255),
    (128, 128, 128),
    (0, 128, 128),
    (240, 160, 0),
    (242, 220, 140),
    (214, 39, 40),
    (140, 79, 191),
    (117, 195, 255),
    (0, 0, 0),
    (210, 210, 210),
    (0, 160, 80),
)
