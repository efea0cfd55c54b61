"""A Spark cluster of two workers on this machine, and every pipeline on it."""
