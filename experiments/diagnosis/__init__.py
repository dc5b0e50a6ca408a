"""Diagnosis of a results folder: what costs time, what to try, and what that would bring by simulation."""
