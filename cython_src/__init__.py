"""What is computed: networks, plans, dependences, kernels, storage, and `run_block`, which runs one block.

Every executor calls `run_block`; no thread is created here. A kernel sees a worker's number and scratch memory;
`run_block` takes the locks of commutative accesses and writes the event log.
"""
