"""The one room that reads PyMC's models: `view.read` accepts one, or refuses it, and says what a run may know."""
