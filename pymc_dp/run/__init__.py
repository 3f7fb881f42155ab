"""A private run: read, plan, rehearse, charge, sample, publish."""
