"""Networks, data, measuring, analysis, figures, command line."""
