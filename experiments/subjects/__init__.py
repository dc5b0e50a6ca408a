"""What is measured: networks and graphs, the models that run them, and the memory that they need."""
