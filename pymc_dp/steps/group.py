"""The DP steps of one run, taken together: what they ask for is planned, paid for and described as one."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pymc_dp.accounting import Releases
from pymc_dp.budget import PrivacyBudget, ReleaseRequest
from pymc_dp.exceptions import UnsupportedOption
from pymc_dp.steps.base import DPStep


class StepGroup:
    """One or several DP steps that move the variables of one model in turn.

    With several steps, the kinds of their releases carry the step's place, such as ``"gradient_2"``.

    Parameters
    ----------
    steps : sequence of DPStep
        In the order in which they move the point, at least one.

    Raises
    ------
    UnsupportedOption
        If the steps do not share a budget or do not protect the same unit.
    """

    def __init__(self, steps: Sequence[DPStep]) -> None:
        self.steps = list(steps)
        first = self.steps[0]
        if any(step.budget is not first.budget for step in self.steps):
            raise UnsupportedOption("The DP steps of one run have to share one budget object.")
        if any(step.unit != first.unit or step.unit_index is not first.unit_index for step in self.steps):
            raise UnsupportedOption("The DP steps of one run have to protect the same unit: pass all the same unit.")
        self.budget: PrivacyBudget = first.budget
        self.unit = first.unit
        self.unit_index = first.unit_index
        self.suffixes = [f"_{place + 1}" for place in range(len(self.steps))] if len(self.steps) > 1 else [""]

    @property
    def name(self) -> str:
        """The steps' names."""
        return " + ".join(step.name for step in self.steps)

    @property
    def budget_share(self) -> float:
        """Part of what is left in the budget that the run may spend."""
        return min(1.0, sum(step.budget_share for step in self.steps))

    @property
    def private(self) -> bool:
        """Whether the result of a run is private."""
        return all(step.private for step in self.steps)

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

    @property
    def clip_bounds(self) -> dict[str, float]:
        """The clip bounds, for the result's metadata."""
        return {
            kind + suffix: bound
            for step, suffix in zip(self.steps, self.suffixes, strict=True)
            for kind, bound in step.clip_bounds.items()
        }

    @property
    def facts(self) -> dict[str, Any]:
        """What else the steps say of the run, for the result's metadata."""
        return {
            name + suffix: value
            for step, suffix in zip(self.steps, self.suffixes, strict=True)
            for name, value in step.facts.items()
        }

    @property
    def labels(self) -> dict[str, list[str]]:
        """Names of the parameters that each step moves, by the suffix of its releases."""
        return {suffix: step.labels for step, suffix in zip(self.steps, self.suffixes, strict=True)}

    def know_n_units(self, n_units: int) -> None:
        """Tell the steps the number of units, where it is public."""
        for step in self.steps:
            step.know_n_units(n_units)

    def what_would_fit(self, noise_factor: float) -> str:
        """Say which settings would fit, if all noise that is given had to grow by a factor."""
        return " ".join(step.what_would_fit(noise_factor) for step in self.steps)

    def release_requests(self, tune: int, draws: int) -> list[ReleaseRequest | Releases]:
        """Return what one chain releases, and what is released once. See `pymc_dp.budget.PlannableStep`."""
        together = sum(step.budget_share for step in self.steps)
        return [
            replace(request, kind=request.kind + suffix, share=request.share * step.budget_share / together)
            if isinstance(request, ReleaseRequest)
            else replace(request, kind=request.kind + suffix)
            for step, suffix in zip(self.steps, self.suffixes, strict=True)
            for request in step.release_requests(tune, draws)
        ]
