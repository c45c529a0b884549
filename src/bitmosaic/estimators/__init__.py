"""The scikit-learn estimators HSIC and BinaryKMeans, NeighborIndex, and their shared modules."""
