"""What a runtime costs a task: METG on Task Bench graphs."""
