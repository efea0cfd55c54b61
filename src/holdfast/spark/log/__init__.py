"""Steps over a log: the runner, its increments, and the jobs that need no table of keys.

``runner`` runs a job step by step; ``increments`` chooses how far a step goes; ``delta_output`` commits a step with its
offset. ``replay`` commits a log to another one; ``audit`` checks a log and ``verify`` does so incrementally.
"""
