"""What is computed: networks, plans, dependences, kernels, storage. Who runs a block and when is decided elsewhere."""
