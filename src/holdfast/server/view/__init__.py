"""The materialised view that a service keeps, in its own process or in this one."""
