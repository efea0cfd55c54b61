"""Typed columns: keys and values of a log, which are bytes, as columns with types.

``ddl`` reads a schema; ``decode`` turns bytes into columns and decides what fits; ``choice`` selects the operations
that a table is made of. All of it is pure: Arrow arrays in, Arrow arrays out.
"""
