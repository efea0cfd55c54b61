"""The asyncio clients, written by hand: they carry out effects with ``client.transport.aio``.

Read ``client`` first: ``Client.run`` drives a procedure, ``Subscription`` follows the change stream. ``stores`` has
``StoreClient``, which makes publishers (``publisher``), subscribers and watches (``subscriber``), maps and
browsers. The blocking clients are generated from these files.
"""
