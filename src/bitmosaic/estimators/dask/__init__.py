"""The estimators on Dask arrays: the steps of the solver run as tasks on a Dask cluster."""
