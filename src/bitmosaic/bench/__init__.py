"""Measurements beside real peers: data, contestants, raw results, tables."""
