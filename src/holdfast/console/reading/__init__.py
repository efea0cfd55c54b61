"""What the console asks of a service, and what it makes of the answers, before any page is drawn.

``service`` asks over HTTP. ``watcher`` reads the metrics (``exposition``) again and again and remembers them, and
``alerts`` judges them. ``backwards`` reads the log from its end.
"""
