"""From what describes a network to a Workload: one file per form."""
