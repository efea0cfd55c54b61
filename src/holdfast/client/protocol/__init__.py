"""The client's side of the HTTP API without I/O: what to send, when to retry, and what an outcome proves."""
