"""What may be wrong with a machine, a store and a log before or while a service runs there, and how to fix it.

``finding`` has the levels. ``machine`` looks at this machine, ``stores`` at its message stores, ``etcd`` at the members
of a cluster, ``log`` at the store and its log, in constant time.
Nothing is written, except the probe's objects under ``probe/``, which are removed, and the result of a race.
"""

from __future__ import annotations

from holdfast.doctor.etcd import check_members
from holdfast.doctor.finding import Finding, Level
from holdfast.doctor.log import check_log
from holdfast.doctor.machine import check_machine
from holdfast.doctor.stores import check_stores

__all__ = ["Finding", "Level", "check_log", "check_machine", "check_members", "check_stores"]
