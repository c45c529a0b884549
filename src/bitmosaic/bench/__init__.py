"""The paper's experiments and the benchmarks: data sets, baselines, stored runs, tables and figures."""
