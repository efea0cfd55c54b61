"""The routes of the message stores that need no fast path.

``messages`` publishes, delivers and acknowledges, and has the maps. ``parts`` are the stores, durables and templates,
``definition`` is the whole of them; ``defining`` says how a request changes it. ``cluster`` has the operations on all
stores. ``collections`` are lists with filters and pages. ``table`` has all rows.
"""
