"""Training studies: many trainings from one file, and one report of them."""
