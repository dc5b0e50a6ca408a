"""A survey of a whole machine in one command: what is measured, and the page about it."""
