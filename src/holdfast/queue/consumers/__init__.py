"""Named consumers of a queue: their positions, what they handed out, and `persist`."""
