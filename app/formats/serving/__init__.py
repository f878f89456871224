"""Results that benchmarks of LLM serving write: a reader per tool, and measurements from what they read."""
