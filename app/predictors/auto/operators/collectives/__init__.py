"""Collectives between and beyond the message sizes and device counts that were measured."""
