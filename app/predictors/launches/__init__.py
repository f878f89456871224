"""Single kernel launches: the cross-GPU kernels paper's methods, and what `auto` does for them."""
