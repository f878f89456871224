"""Experiments of the cross-GPU kernels paper."""
