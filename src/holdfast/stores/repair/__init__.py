"""Backup, verification and repair of a store's files."""
