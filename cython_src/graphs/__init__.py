"""Plans that are no networks: graphs of the user's own tasks, and Task Bench."""
