"""Worlds of workers: the client's real machine and WebSocket, the service's real socket, deliveries, stores and state.

server    one process of the service on virtual time; its log is the world's
line      one connection: it delays, holds and cuts
worker    one process of an application: the client's machine, and jobs
promises  what is true of each hand-over
world     what happens, and in which order
mutants   rules taken out, which a world must notice

Simulated are the network, the durable log, the clocks and the applications.
"""
