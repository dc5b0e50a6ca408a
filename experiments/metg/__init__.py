"""Cost of a runtime per task: METG on Task Bench graphs."""
