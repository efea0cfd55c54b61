"""The data source that reads a log, in batches and as a stream."""
