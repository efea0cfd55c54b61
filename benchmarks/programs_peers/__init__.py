"""What ``programs`` measures: the clients, the two ways to use one, and the process in which a program runs."""
