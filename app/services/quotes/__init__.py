"""Answers that are kept: with what they were derived from, so that they can be derived again."""
