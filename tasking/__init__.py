"""The task runtime and its executors: deques, sleep protocol, eager tasks, recorded graphs, programs."""
