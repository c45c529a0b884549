"""Beyond one machine: the steps of the solver, and the views they read, as blocks on a Dask cluster."""
