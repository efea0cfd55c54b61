"""The command line: one module for each group of commands.

Owns: arguments, output for people and for programs (``--json``), exit codes. Does not own: anything that a library user
would want; commands are a few lines around the public API.

Failure model: an error is one line on stderr, a hint below it where there is one, and an exit code of
``docs/reference/exit-codes.md``. A traceback is a bug of ours.
"""
