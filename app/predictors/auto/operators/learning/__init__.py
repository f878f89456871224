"""From measured rows to learned models of operators."""
