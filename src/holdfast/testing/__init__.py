"""Tools for tests of programs that use Holdfast.

- ``fault_proxy``: an HTTP/1.1 proxy in front of an object store that loses, delays and repeats requests and responses;
  ``fault_proxy_process`` runs it in its own process.
- ``rgw``: a real S3 service, Ceph's RADOS Gateway, on one machine.
- ``histories``: checks a history of concurrent transactions for anomalies; ``registers`` checks that a small history of
  one register is linearizable.

Start with ``fault_proxy`` to see how a program handles unknown outcomes. The simulated worlds of Holdfast itself are in
``tests/worlds``.
"""
