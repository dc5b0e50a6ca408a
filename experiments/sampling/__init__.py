"""Measuring: processes that are started, take turns, are timed and profiled, and the schedule of all of it."""
