"""Atomic file writes, folder locks, checked reads, user paths, and threads."""
