"""Tools for tests of programs that use Holdfast.

``fault_proxy`` is an HTTP/1.1 proxy in front of an object store. It loses, delays and repeats requests and responses;
``fault_proxy_process`` runs it in its own process. Use it to see how a program handles unknown outcomes.
"""
