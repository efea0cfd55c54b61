"""Worlds of one client that gathers its commits: its real procedures and its real machine, and a model of a service.

service   a model of one service and its log, which is killed, refuses, mixes up lines and reads late
shell     what a client's transport does, on virtual time: connections are refused, cut and silent
caller    one caller: commits, transactions, and leaving in the middle
world     what happens, and what must be true of it
mutants   rules taken out, which a world must notice

Simulated are the service, the connections, the clock and the callers.
"""
