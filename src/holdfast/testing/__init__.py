"""The testing kit that ships: simulated worlds, a real S3 server, a fault proxy in front of it, a checker of histories.

Modules: ``simulation`` (whole worlds from one seed, and the mutants that they catch), ``rgw`` (Ceph RADOS Gateway on
one machine), ``fault_proxy`` and ``fault_proxy_process``, ``histories`` and ``registers``, ``queue_world`` (the
embedded queue on a disk that forgets, crashed at any moment, and its mutants).
"""
