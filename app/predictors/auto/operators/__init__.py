"""Deep-learning operators: what `auto` knows and learns of them."""
