"""The files of a queue: the port to the file system, and what is opened, renamed and locked through it."""
