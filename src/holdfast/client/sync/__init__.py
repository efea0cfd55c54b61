"""The blocking clients and the sockets that they use."""
