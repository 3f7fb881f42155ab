"""The sources' experiments, one module for each group of figures and tables: ``python -m experiments.NAME``.

`docs/experiments.md` compares what is stored below `results/` with what was printed.
"""
