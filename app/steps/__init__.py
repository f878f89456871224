"""The one way to time a network: rows, their predictions, corrections, schedule, memory and interval of a step."""
