"""Whole worlds of the message stores from one seed: the real state machine, plain models, crashes at any command.

    python -m tests.worlds.stores --worlds 1000 --jobs 2 --mutants

Owns: the ports in memory, the models, the worlds, the promises that they are held to, and the mutants that prove that a
broken promise is noticed. Does not own: anything that runs in production; files and their crashes (``queue_world``).

``promises`` lists what is promised and who judges it.
"""
