"""Our own predictor, `auto`: kernel launches and deep-learning operators."""
