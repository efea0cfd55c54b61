"""The log of a queue: writer, reader, recovery and space."""
