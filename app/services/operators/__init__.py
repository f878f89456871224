"""Deep-learning operators: rows, columns, batches and sweeps of them."""
