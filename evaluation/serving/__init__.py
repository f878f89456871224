"""Served deployments that others measured, against predictions of kind `serving`."""
