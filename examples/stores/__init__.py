"""Message stores at work, each example a program against a running service."""
