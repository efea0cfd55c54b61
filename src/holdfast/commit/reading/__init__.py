"""Reading a log without leading it.

``reader`` walks the chain forward and back over claims, ``feed`` keeps the newest events for all subscribers,
``status`` finds attempts of earlier leaders, and ``verify`` reads the whole log again to find damage.
"""
