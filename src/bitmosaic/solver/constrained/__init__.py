"""Clusters that meet constraints: links, fixed rows and size limits."""
