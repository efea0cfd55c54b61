"""What the clients send, when they retry and what an outcome proves, without I/O.

A procedure is a generator: it yields an effect and is sent the reply (``effects``). It reads no clock and draws no
random number, so both clients run the same procedure. Read ``log_operations`` first: its
table has the rules of a commit.

    ``effects``         effects, replies and the events of a subscription
    ``endpoint``        addresses, and which one is asked next
    ``http1``           the bytes of requests and responses
    ``messages``        bodies of the log's HTTP API
    ``options``         the bounds of every wait, retry and buffer
    ``retry_budget``    how long one operation retries
    ``log_operations``  commit, status, version, reads
    ``transaction``     reads, writes and the retries of ``Client.transact``
    ``stream``          the change stream: proof of completeness, reconnecting
    ``stores``          the machines of the message stores
"""
