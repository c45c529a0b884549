"""The web page over a run folder, and the one-file report."""
