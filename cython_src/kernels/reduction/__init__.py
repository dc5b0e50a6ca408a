"""Private copies of users' reductions: filling and combining."""
