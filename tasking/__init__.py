"""Task-based execution: deques, sleep protocol, graphs, replay."""
