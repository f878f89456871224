"""Transformers: a description of their architecture (architecture.py), and its lowering to rows (lowering.py)."""
