"""The tests of the promises in docs/reliability.md that take minutes: `make torture`.

Each module is one kind of test. Its ``tallies(effort)`` yields a `Tally` for each line of the printed table.
test_torture.py runs a small part of each kind.
"""
