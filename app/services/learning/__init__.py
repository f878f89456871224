"""Retraining, and the artefacts that ship."""
