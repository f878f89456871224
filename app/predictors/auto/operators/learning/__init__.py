"""Training of the operator models from measured rows."""
