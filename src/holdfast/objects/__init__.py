"""Object stores: one port, one adapter per kind, and what the log needs around them."""
