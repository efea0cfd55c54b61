"""How a cluster is stored: the log of commands, the index in SQLite, checkpoints and caches."""
