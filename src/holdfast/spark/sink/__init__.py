"""Write rows to a log or into a message store through a service, each exactly once.

``record`` is the driver's part: an intent before the tasks, done after them. ``task`` commits the rows of a partition,
``store_task`` publishes them, and both note their ``progress``. ``writer`` is what Spark calls.
"""
