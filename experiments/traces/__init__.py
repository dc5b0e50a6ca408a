"""Traces of several models: they are collected here and written for the tools that show them."""
