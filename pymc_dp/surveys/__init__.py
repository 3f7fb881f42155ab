"""What is asked of a table once, without a sampler: its description, and whether a posterior fits it."""
