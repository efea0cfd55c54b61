"""The state machine of a cluster: `apply(command)` changes the state and returns a result."""
