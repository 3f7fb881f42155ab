"""Surveys of a table, released once and without a sampler: descriptions, model checks, comparisons, predictions."""
