"""Packed binary codes: distances, nearest codes, pairs within a radius, samples."""
