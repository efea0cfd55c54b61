"""The formats of the log: transactions, entries, batch objects and the chain that links them."""
