"""A private run: reading the model, plan, dry run, charge, sampling, publication."""
