"""One module per type of durable, and what standard and shared ones have in common.

standard     one subscriber                            backlog            what was never handed out, as one number
shared       many subscribers                          holdings           who holds what, until when
key_ordered  one key with one of them at a time        returned           what waits to be handed out again
consumption  delivery, acknowledgement, coming back    aging, retention   what goes, and what stays, by time
last_value   the newest message of each key            discarding         what goes because of limits
map, locks   keys and values, and who may change them  administration     purge, delete, browse
keyed        what last values and maps share           consumption_state  snapshots and checks
"""
