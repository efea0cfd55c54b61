"""The routes of the commit log: commits, status, and the change stream."""
