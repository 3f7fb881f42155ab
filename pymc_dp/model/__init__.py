"""What may be in a model: types, operations, arrays and builders, each on a list. All else is refused by name."""
