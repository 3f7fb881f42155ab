"""The only package that reads PyMC models: `view.read` validates a model and returns the facts that a run uses."""
