"""Vector types, inner loops compiled once for each instruction set, and the choice between them."""
