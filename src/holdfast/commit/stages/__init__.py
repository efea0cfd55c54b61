"""The four stages of a commit, and the pipeline that joins them.

``events`` has the entries, events and effects. ``sequence``, ``resolve``, ``persist`` and ``release`` are the stages;
they do not import each other. ``attempts`` is what sequence and resolve know of request ids. ``pipeline`` is the only
control flow between them, and its docstring lists the duties of a driver.
"""
