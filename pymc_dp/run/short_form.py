"""``pm.sample(budget=...)``: defaults for the steps' budget, the sampler and the length of the run."""

import logging
from collections.abc import Sequence
from typing import Any

from pymc_dp.budget.plan import Plan
from pymc_dp.budget.privacy_budget import PrivacyBudget
from pymc_dp.exceptions import InvalidArgument, UnsupportedOption
from pymc_dp.model.context import Model
from pymc_dp.steps.arguments import StepWithoutBudget
from pymc_dp.steps.base import DPStep
from pymc_dp.steps.surrogate_hmc import DPSurrogateHMC

#: PyMC's own logger: messages come in one log with PyMC's of the run.
_log = logging.getLogger("pymc")
_DEFAULT_CHAINS = 4

PrivacyBudget.default_step = DPSurrogateHMC


def steps_with_budget(
    step: Any, budget: PrivacyBudget | None, model: Model, unit: str | None = None, unit_index: Any = None
) -> Any:
    """Return ``step=`` with the call's budget and unit set in all steps made without; the default sampler for None.

    Refuse a step without any budget, with another budget than the call's, or for another unit.
    """
    if step is None and budget is not None:
        with model:
            step = DPSurrogateHMC(budget=budget, unit=unit, unit_index=unit_index)
        _log.info(
            "DPSurrogateHMC was chosen: it learns all of its settings, and has had the smallest error of the samplers. "
            "Others are used with step=dp.DPHMC() and budget=."
        )
        return step
    if isinstance(step, StepWithoutBudget | DPStep) and not (unit is None and unit_index is None):
        step = step.protecting(unit, unit_index)
    if isinstance(step, StepWithoutBudget):
        if budget is None:
            raise InvalidArgument(
                f"{step.step_class.__name__} needs a budget: pass budget=pymc_dp.PrivacyBudget(epsilon=..., "
                "delta=...) to it, or to pm.sample."
            )
        return step.with_budget(budget, model)
    if isinstance(step, Sequence) and not isinstance(step, str):
        return [steps_with_budget(one, budget, model, unit, unit_index) for one in step if one is not None]
    if isinstance(step, DPStep) and budget is not None and budget is not step.budget:
        raise UnsupportedOption(
            "budget= is not the budget of the DP step, and two budgets cannot be charged for one run. Leave out "
            "budget=, or make the step with this budget."
        )
    return step


def chosen_length(steps: Sequence[DPStep], draws: int | None, chains: int | None) -> tuple[int, int, str]:
    """Return draws and chains, with defaults of private runs where they were left out, and the defaults in words.

    Given numbers are checked by the plan.
    """
    chosen = []
    if draws is None:
        draws = max(step.default_draws for step in steps)
        chosen.append(f"draws={draws}")
    if chains is None:
        chains = _DEFAULT_CHAINS
        chosen.append(f"chains={chains}")
    return draws, chains, " and ".join(chosen)


def log_chosen_length(words: str, plan: Plan) -> None:
    """Log the chosen length of the run, if any, and why it differs from PyMC's."""
    if not words:
        return
    in_chains = sum(each.count for step in plan.steps for each in step.in_chains)
    why = (
        f"the budget is spread over {in_chains:,} releases in chains, and fewer draws mean less noise in each"
        if in_chains
        else "all is released before the chains start, so that draws cost nothing"
    )
    _log.info(f"{words} chosen for this private run: {why}.")
