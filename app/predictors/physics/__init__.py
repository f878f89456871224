"""The analytic model of operators: features, clocks, time, and constants fitted to measured rows."""
