"""What ``stores_vs_peers`` measures: the systems, and one asyncio client process for each figure."""
