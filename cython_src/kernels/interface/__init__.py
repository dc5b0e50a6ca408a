"""What every kernel is built against: its arguments, its description, and how an executor runs one block."""
