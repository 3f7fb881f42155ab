"""The DP steps of one run, taken together: they share a budget, a privacy unit, and one result."""

from collections.abc import Sequence

from pymc_dp.budget.privacy_budget import PrivacyBudget
from pymc_dp.exceptions import UnsupportedOption
from pymc_dp.steps.base import DPStep


class StepGroup:
    """One or several DP steps that move the variables of one model in turn.

    Parameters
    ----------
    steps : sequence of DPStep
        In the order in which they move the point, at least one.

    Raises
    ------
    UnsupportedOption
        If the steps do not share a budget, do not protect the same unit, or do not temper alike.
    """

    def __init__(self, steps: Sequence[DPStep]) -> None:
        self.steps = list(steps)
        first = self.steps[0]
        if any(step.budget is not first.budget for step in self.steps):
            raise UnsupportedOption("The DP steps of one run have to share one budget object.")
        if any(step.unit != first.unit or step.unit_index is not first.unit_index for step in self.steps):
            raise UnsupportedOption("The DP steps of one run have to protect the same unit: pass all the same unit.")
        if len({getattr(step, "tempering", 1.0) for step in self.steps}) > 1:
            raise UnsupportedOption(
                "The DP steps of one run have to draw from one law: pass all the same tempering. (A step without that "
                "argument does not temper.)"
            )
        self.budget: PrivacyBudget = first.budget
        self.unit = first.unit
        self.unit_index = first.unit_index

    @property
    def seeded(self) -> bool:
        """Whether the noise of a step is seeded."""
        return any(step.insecure_seed is not None for step in self.steps)

    @property
    def random_seed(self) -> int | None:
        """A seed for the chains, where the noise is seeded as well."""
        return next((step.insecure_seed for step in self.steps if step.insecure_seed is not None), None)

    @property
    def exact_counts(self) -> bool:
        """Whether exact clip counts are returned."""
        return any(step.clip_diagnostics == "exact" for step in self.steps)

    @property
    def keep_releases(self) -> bool:
        """Whether the result keeps every release: all steps have to want it."""
        return all(step.keep_releases for step in self.steps)

    def stand_beside_a_table(self, beside: bool, *, units_of_rows: bool) -> None:
        """Say whether the rows are those of a table beside the model, which holds invented rows then.

        And whether the units of that table have several rows.

        Raises
        ------
        UnsupportedOption
            If units are named in two places.
        """
        if beside and self.unit_index is not None:
            raise UnsupportedOption(
                "With data=, units of several rows are named there: Table(..., unit=), not unit_index=."
            )
        for step in self.steps:
            step.stand_beside_a_table(beside, units_of_rows=units_of_rows)

    def know_n_units(self, n_units: int) -> None:
        """Tell the steps the number of units, where it is public."""
        for step in self.steps:
            step.know_n_units(n_units)
