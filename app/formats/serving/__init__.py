"""Results that benchmarks of LLM serving write: points from their files, and measurements from points."""
