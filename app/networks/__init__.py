"""Networks as graphs of operators: importers, passes, schedule, memory and serving figures."""
