"""The command line: one module for each group of commands, and nothing but the command line.

Read ``main`` first: it joins the groups and turns errors into one line, a hint and an exit code. ``options`` are shared
options, ``output`` prints and defines the exit codes, ``service`` is the client of a command that needs a service.
``transactions`` has the commands of the log's client; ``log``, ``queue`` and ``stores`` are groups. ``log_views``
and ``queue_views`` run the commands of a group; they are loaded when a command runs.

A program finds the same operations in the library: ``holdfast.Client``, ``holdfast.StoreClient``,
``holdfast.queue.repair`` and ``holdfast.commit.reading.survey``.
"""
