"""What ``queue_vs_peers.py`` is made of: the peers behind one face, what a child process measures, lanes, targets,
faults and the report."""
