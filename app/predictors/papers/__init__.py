"""The published methods, a folder each."""
