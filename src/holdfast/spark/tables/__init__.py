"""The tables that a pipeline keeps: changes, history, latest, snapshots and segments."""
