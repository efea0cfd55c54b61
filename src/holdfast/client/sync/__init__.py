"""The blocking clients, generated from ``client.aio`` by ``scripts/generate_sync_clients.py``: edit those files."""
