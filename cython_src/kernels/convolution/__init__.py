"""Convolutions: direct and Winograd, with images or channels in the vector lanes."""
