"""Hugging Face model types by family: each module reads configurations into an Architecture."""
