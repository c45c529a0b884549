"""Views' embeddings -> codes and clusters: Algorithm 1, one pure function per equation."""
