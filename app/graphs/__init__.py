"""Models and machines: importers to a Workload, passes over it, its schedule, memory and serving figures."""
