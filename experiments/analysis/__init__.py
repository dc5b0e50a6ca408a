"""From sample rows to tables: bounds, intervals, verdicts. No clock and no executor here."""
