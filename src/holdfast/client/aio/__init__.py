"""The asyncio clients: one class per client of the log or of a store, and the connections that they use."""
