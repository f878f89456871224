"""Families of Hugging Face model types: each file reads configurations into an Architecture."""
