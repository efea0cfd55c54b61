"""The formats of a queue's files, byte by byte. Pure."""
