"""The data sink that writes rows to a log."""
