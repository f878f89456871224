"""Published prediction methods, a folder per paper."""
