"""The command line.

Read ``main`` first: it joins the groups of commands and turns errors into one line, a hint and an exit code.

- ``service``: ``on_service`` gives a command --url, --token, --timeout and --json; ``Service`` makes its client.
- ``options``: options that several groups share. ``output``: printing, and the exit codes.
- ``processes``, ``transactions``: the commands without a group. ``log``, ``retention``, ``queue``, ``stores`` and
  ``spark``: one group each, which is loaded when one of its commands is asked for. ``log_copies``, ``stores_messages``
  and ``stores_files`` add commands to theirs.

A program finds the same operations in the library: ``holdfast.Client``, ``holdfast.StoreClient``,
``holdfast.queue.repair`` and ``holdfast.commit.reading.survey``.
"""
