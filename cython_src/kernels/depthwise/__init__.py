"""Depthwise convolutions, alone or joined with the norms around them."""
