"""Convolutions: direct, im2col and Winograd, with images or channels in the vector lanes."""
