"""Steps over a log: increments, the runner that makes each exactly once, replay and verification."""
