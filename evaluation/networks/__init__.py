"""Errors on measured networks: NeuSight's models, the order of GPUs, and ConvNets as in ConvMeter's paper."""
