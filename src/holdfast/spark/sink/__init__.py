"""Write rows to a log through a service, each transaction exactly once.

``record`` is the driver's part: an intent before the tasks, done after them. ``task`` sends one partition. ``writer``
is what Spark calls.
"""
