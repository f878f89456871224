"""`habitat`: the baseline of Yu et al. (USENIX ATC 2021)."""
