"""The processes that a service starts and ends: a console, and jobs on the log."""
