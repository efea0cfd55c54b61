"""How a process becomes the leader of a log, stays it, and notices that it is not."""
