"""Worlds of the commit log: the real state machines and the real shells of several nodes, under every kind of fault.

``world`` is a world from its first event to its end, ``node`` one process of it, ``network`` the store and what happens
to requests, ``clients`` the workloads. ``agenda`` and ``loop`` are virtual time. ``promises`` judges all the time and
``settle`` at the end. ``retention`` has an operator who sets policies while leaders truncate, ``etiquette`` calm worlds
of an idle leader and its standbys, ``clocks`` retention and mirrors with wall clocks that cannot be trusted, ``times``
a restore at a time of such a log. ``mutants`` and ``retention_mutants`` prove the judges.
"""

from tests.worlds.log.world import World, run_world

__all__ = ["World", "run_world"]
