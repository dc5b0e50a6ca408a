"""What is computed: plans, dependences, kernels, storage. Knows nothing of threads."""
