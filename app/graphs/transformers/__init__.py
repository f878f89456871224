"""Transformers as traits (architecture.py), and one lowering from these to rows (lowering.py)."""
