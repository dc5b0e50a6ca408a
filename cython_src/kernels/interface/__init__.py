"""The interface of every kernel: its arguments, its description, and how an executor runs one block."""
