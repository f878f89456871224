"""Scorecard: whole workloads that others measured, predicted by the shipped `auto` as POST /predict does."""
