"""The cross-GPU kernels paper: efficiency transfer (`efficiency`) and seven regressors over pairs of GPUs."""
