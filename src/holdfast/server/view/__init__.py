"""The materialised view that a service keeps of its own log, for ``/v1/keys`` and ``/v1/range``.

``routes`` read an ``EmbeddedView`` (``embedded_view``). It keeps the view of a ``memory:`` log in this process, and any
other one in a process of its own: ``child`` starts it and reads its file, ``process`` runs in it, and ``messages`` is
what the two send each other.
"""
