"""A run folder: written by `cluster` and `fit`, read by all other commands. See folder.py for its files."""
