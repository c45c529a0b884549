"""Embeddings of the views -> codes and clusters: Algorithm 1, one pure function per equation."""
