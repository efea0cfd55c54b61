"""The asyncio clients, written by hand: they carry out effects with ``client.transport.aio``.

``client`` is the client of the log; ``stores`` is the client of the message stores, which makes publishers, subscribers
and watches. The blocking clients are generated from these files.
"""
