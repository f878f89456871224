"""Deep-learning operators as requests describe them: rows and columns."""
