"""Measure a served model over HTTP: closed loops on an OpenAI-compatible endpoint."""
