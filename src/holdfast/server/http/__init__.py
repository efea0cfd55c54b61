"""Connections, requests and responses, for every route."""
