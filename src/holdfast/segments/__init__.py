"""Segments of a log: the table that holds them, and reading them again without Spark."""
