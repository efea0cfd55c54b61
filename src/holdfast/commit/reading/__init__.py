"""Everything that reads a log without leading it: readers, change streams, status and verification."""
