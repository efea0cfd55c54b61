"""Objects in a directory of a file system, with the guarantees of an object store."""
