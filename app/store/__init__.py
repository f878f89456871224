"""All SQL and all disk."""
