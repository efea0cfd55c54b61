"""The testing kit that ships: a real S3 server, a fault proxy in front of it, and a checker of histories.

Modules: ``rgw`` (Ceph RADOS Gateway on one machine), ``fault_proxy`` and ``fault_proxy_process``, ``histories`` and
``registers``.
"""
