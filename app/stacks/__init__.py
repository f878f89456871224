"""What every release of a software stack does: facts of `seed_data/stacks`, a file a stack, looked up by name."""
