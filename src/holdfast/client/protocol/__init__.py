"""What the clients send, when they retry and what an outcome proves, without I/O.

A procedure is a generator: it yields an effect and is sent the reply (``effects``). A procedure reads no clock and
draws no random number, so the blocking and the asyncio client run the same procedures.

Read ``log_operations`` first: its table has the rules of a commit. ``gathering`` carries commits that wait at the same
time in one request. ``transaction`` and ``stream`` are built on it;
``stores`` has the machines of the message stores. Below them are ``retry_budget`` and ``endpoint`` (how long to retry,
which endpoint to ask), ``messages`` and ``http1`` (the bytes).
"""
