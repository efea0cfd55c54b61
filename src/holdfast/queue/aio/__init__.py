"""The asyncio queue, work queue and `persist`."""
