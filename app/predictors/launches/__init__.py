"""Kernel launches: occupancy, identity, validity, and the relation of measurements to a query."""
