"""What this machine can do: peaks, speed of kernels, fitness for measuring."""
