"""What bitmosaic must survive: `make torture` tries it and prints how often and what came of it.

A module here is one kind of harm. Its ``tallies(effort)`` yields a `Tally` for each line of the table; the short form
of every one is a test (test_torture.py).
"""
