"""Networks, a file each, readable as the paper's table. Names of parameters are those of the usual PyTorch modules."""
