"""Measuring, analysis, figures and tables, training, the command line."""
