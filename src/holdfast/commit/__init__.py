"""The transactional commit log: four pure stages, the log protocol, and the shell that drives them."""
