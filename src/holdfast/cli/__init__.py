"""The command line.

Read ``main`` first: it joins the groups of commands and turns errors into one line, a hint and an exit code.

- ``service``: ``on_service`` gives a command --url, --token, --timeout and --json; ``Service`` makes its client.
- ``options``: options that several groups share. ``output``: printing, and the exit codes.
- ``serve``, ``transactions``: the commands without a group. ``log``, ``queue``, ``stores``, ``spark``: one group each.
  ``stores_messages`` and ``stores_files`` add commands to ``stores``.
- ``log_views`` runs the commands of ``log``. It needs Arrow, so it is loaded when one of them runs.

A program finds the same operations in the library: ``holdfast.Client``, ``holdfast.StoreClient``,
``holdfast.queue.repair`` and ``holdfast.commit.reading.survey``.
"""
