"""Importers of network descriptions into Workloads: one module per format."""
