"""Matchers: which messages a durable takes, and an index to find the durables of a message."""
