"""The suite `operators`: every operator of the API in PyTorch, over a space-filling design of its sizes."""
