"""The examples of README.md and docs/, and what they need to run."""
