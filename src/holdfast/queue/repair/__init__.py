"""Verification and repair of a queue's files."""
