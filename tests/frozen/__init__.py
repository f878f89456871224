"""Answers of the service, kept: a change of the code that should not change answers is held to them."""
