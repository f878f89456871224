"""How good the predictions are, on data that they did not learn from."""
