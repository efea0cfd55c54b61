"""The web console: pages that show what a log and its message stores do, and let an operator act.

It is a client: it asks a service over HTTP, with the rights of one token, and imports nothing of the server. Pages are
made here as plain HTML; one small script refreshes their live parts. ``run`` starts it, ``application`` joins the pages
in ``pages/`` with the rules of ``security``.
"""
