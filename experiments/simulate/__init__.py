"""Simulation of the executors on any machine: from a plan's graph and block durations to the time of a step."""
