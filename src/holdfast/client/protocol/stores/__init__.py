"""The message stores' protocol as machines and procedures without I/O.

``administration`` has procedures: one request, one response. ``PublisherMachine`` (``publisher``),
``SubscriberMachine`` (``subscriber``) and ``WatchMachine`` (``watch``) are machines. The driver of a machine repeats::

    step = machine.next_step(now_ms)
    # carry it out: Send, Wait, Connect, Talk or Ended
    machine.on_response(reply)    # or received, lost, waited, ...

``acknowledgements`` has what a subscriber acknowledges, reports and may receive; ``messages`` bodies and frames;
``web_socket`` the framing of a subscription.
"""
