"""Serving under load: step times of an engine, loads, the closed form of a steady state, and an event simulation."""
