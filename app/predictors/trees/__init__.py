"""Boosted trees of equal depth, grown and summed over many rows in compiled code; they know of no operator."""
