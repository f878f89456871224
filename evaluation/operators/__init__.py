"""Errors of predictors of deep-learning operators on rows, configurations and GPUs held out of training."""
