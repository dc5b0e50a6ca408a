"""One sample: the child process, its environment, timing, profile."""
