"""The loaded predictors over one catalogue, GPU names to rows, stored measurements as evidence and exact hits."""
