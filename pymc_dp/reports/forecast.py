"""`dry_run`: the same code with the same noise on a synthetic table, to predict the quality of a run at no cost.

Only the number of units of the protected table is read, where that is public, and no budget is charged.
"""

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from xarray import DataTree

from pymc_dp.budget.plan import Plan
from pymc_dp.budget.privacy_budget import PrivacyBudget
from pymc_dp.budget.worth import Worth
from pymc_dp.exceptions import InvalidArgument, UnsupportedModel
from pymc_dp.model.context import Model, model_in_context
from pymc_dp.model.origins import refuse_tables_of_the_data
from pymc_dp.model.simulation import on_drawn_rows
from pymc_dp.model.structure import rows_can_be_simulated
from pymc_dp.model.units import public_number_of_units
from pymc_dp.reports.quality import Quality, quality
from pymc_dp.run import sampling
from pymc_dp.run.refusals import refuse_no_table, refuse_wrong_budget_or_step
from pymc_dp.run.short_form import chosen_length, steps_with_budget
from pymc_dp.steps.base import DPStep
from pymc_dp.tables import Table

_log = logging.getLogger("pymc")
#: Largest relative difference between the lengths of the synthetic and the protected table.
_ABOUT_AS_LONG = 0.2
#: Length of the reference, draws of NUTS on the synthetic table.
_REFERENCE_DRAWS, _REFERENCE_CHAINS = 500, 2
#: Central intervals whose coverage is reported.
#: Of intervals of 90 %: where the posterior is near normal, those that are 1.4 times too narrow hold as much.
_LEAST_COVERAGE = 0.75
_INTERVAL = (0.05, 0.95)


@dataclass(frozen=True)
class Forecast:
    """The expected quality of a run.

    Attributes
    ----------
    plan : Plan
        The plan of the run: its releases, their noise and cost.
    n_units : int
        Number of units of the synthetic table.
    size : int
        Number of unconstrained parameters.
    error, worst : float
        Error of the draws' means against the posterior without privacy, in its standard deviations: root mean square
        over parameters, and the largest.
    coverage : float
        Posterior probability, without privacy, of the draws' central 90 % intervals, averaged over parameters.
    quality : Quality
        Effective draws, R-hat, acceptance, possible bias from clipping, and the verdict.
    seconds : float
        Duration of the run, compilation included.
    """

    plan: Plan
    n_units: int
    size: int
    error: float
    worst: float
    coverage: float
    quality: Quality
    seconds: float

    @property
    def forced_error(self) -> float:
        """The average error from privacy noise, in posterior standard deviations; NaN if unknown."""
        return math.sqrt(max(self.quality.widening_by_noise**2 - 1.0, 0.0))

    @property
    def worth(self) -> Worth:
        """The error from privacy noise, and the changes that would reduce it."""
        rho = self.plan.rho if self.plan.account == "rho" and math.isfinite(self.plan.epsilon) else math.nan
        return Worth(self.forced_error, self.n_units, self.size, rho, self.plan.delta)

    def __str__(self) -> str:
        found = self.quality
        if not found.usable:
            verdict = f"{found.verdict}: {'; '.join([*found.reasons_against, *found.reasons_unknown])}"
        elif found.imprecise:
            verdict = f"usable, but imprecise: intervals are {found.widening:.2g} times as wide."
        else:
            verdict = "usable."
        if found.usable and self.coverage < _LEAST_COVERAGE:
            verdict = f"the run would be called {verdict} These intervals say otherwise: do not rely on it."
        lines = [
            f"Dry run of {self.plan.sampler} on {self.n_units:,} synthetic units, epsilon {self.plan.epsilon:.3g}: "
            "nothing was read or spent.",
            f"Means were off by {self.error:.2g} posterior sd (root mean square; worst {self.worst:.2g}) with this "
            f"draw of noise; 90 % intervals held {self.coverage:.0%} of the posterior.",
            f"{found.effective_draws:.0f} effective draws, R-hat {found.r_hat:.2f}, accepted {found.acceptance:.0%}; "
            f"{self.seconds:.0f} s. Verdict: {verdict}",
        ]
        if math.isfinite(found.clip_bias):
            lines.append(f"Clip bounds may move means by about {max(found.clip_bias, 0.0):.2f} sd of the draws.")
        return "\n".join([*lines, *self.worth.advice()])


def dry_run(
    step: DPStep | PrivacyBudget | Sequence[DPStep] | None = None,
    *,
    draws: int | None = None,
    chains: int | None = None,
    tune: int | None = None,
    synthetic: Model | None = None,
    model: Model | None = None,
    budget: PrivacyBudget | None = None,
    data: Table | None = None,
    random_seed: int | None = None,
    unit: str | None = None,
    unit_index: Any = None,
) -> Forecast:
    """Make the run on a synthetic table instead of the protected one, and compare its draws with those of NUTS.

    Parameters
    ----------
    step : DP step, sequence of DP steps, or PrivacyBudget, optional
        As ``step=`` of `pm.sample`; or the budget alone, for the default sampler.
    draws, chains, tune : int, optional
        As in `pm.sample`.
    synthetic : Model, optional
        The same model, written on a synthetic table of about as many rows: invented or simulated, never a part of the
        protected one. Default: rows simulated from the model at a draw of its prior, for models without covariates,
        groups and units of several rows. Required under add-remove, which protects the number of units.
    model : Model, optional
        The model of the protected table. Default: that of the ``with`` context.
    budget : PrivacyBudget, optional
        For steps that were made without one.
    data : Table, optional
        The protected table, where the model holds invented rows, which are then the default of
        `synthetic`, if they are about as many. Only the number of rows of the table is read.
    random_seed : int, optional
        Of the simulated rows and of the reference: never of noise.
    unit, unit_index
        The unit of privacy, as in `pymc_dp.sample`. A data variable of this name has to be in both models.

    Returns
    -------
    Forecast
        Print it for a summary.

    Raises
    ------
    InvalidArgument
        If the synthetic table is a part of the protected one, or much longer or shorter; or if `data` has units of
        several rows.
    UnsupportedModel
        If no synthetic table is passed and rows cannot be simulated from the model or their number is protected, or if
        the synthetic table's parameters differ.
    BudgetExceeded
        If the run does not fit the remaining budget.
    """
    if isinstance(step, PrivacyBudget):
        if budget is not None and budget is not step:
            raise InvalidArgument("Two budgets were passed: leave one out.")
        step, budget = None, step
    refuse_wrong_budget_or_step({"step": step, "budget": budget})
    if step is None and budget is None:
        raise InvalidArgument("A dry run needs a budget: dp.dry_run(dp.PrivacyBudget(epsilon=1.0, delta=1e-6)).")
    refuse_no_table(data)
    model = model_in_context(model)
    steps = steps_with_budget(step, budget, model, unit, unit_index)
    steps = list(steps) if isinstance(steps, Sequence) else [steps]
    if not all(isinstance(one, DPStep) for one in steps):
        raise InvalidArgument("The first argument must be a budget, or a sampler such as dp.DPHMC() with budget=.")
    budget, first = steps[0].budget, steps[0]
    synthetic, n_synthetic = _synthetic(
        model, first, data, first.synthetic if synthetic is None else synthetic, random_seed
    )
    draws, chains, _ = chosen_length(steps, draws, chains)
    tune = max(one.default_tune_steps for one in steps) if tune is None else tune
    twin_budget = _copy_of_budget(budget)
    with model:
        plan = budget.plan(steps, draws=draws, tune=tune, chains=chains, data=data)
    synthetic = first.form_of(synthetic)
    with synthetic:
        twins = [one.made_by.with_budget(twin_budget, synthetic, synthetic=None, n_units=None) for one in steps]
        if twins[0].parameters.shapes != first.parameters.shapes:
            raise UnsupportedModel(
                "The model of the synthetic table has other free variables than the model of the data: write both with "
                "the same function."
            )
        began = time.perf_counter()
        options = {"progressbar": False, "compute_convergence_checks": False, "random_seed": random_seed}
        _log.info("DRY RUN on a synthetic table: nothing is read of the protected one, and nothing is spent.")
        length = {"draws": draws, "tune": tune, "chains": chains}
        tree = sampling.sample_invented_rows(cores=1, step=twins, quiet=True, **length, **options)
        seconds = time.perf_counter() - began
        _log.info("The posterior of the synthetic table is drawn without privacy, to compare with.")
        reference = sampling.sample_without_privacy(
            draws=_REFERENCE_DRAWS, tune=_REFERENCE_DRAWS, chains=_REFERENCE_CHAINS, cores=1, **options
        )
    error, worst, coverage = _compared(tree, reference, twins[0].parameters.variables)
    return Forecast(plan, n_synthetic, first.parameters.size, error, worst, coverage, quality(tree), seconds)


def _copy_of_budget(budget: PrivacyBudget) -> PrivacyBudget:
    """Return a budget with the same charges, for synthetic tables alone."""
    copy = budget.unspent()
    for plan in budget.history:
        copy.charge(plan)
    return copy


def _synthetic(
    model: Model, step: DPStep, data: Table | None, synthetic: Model | None, random_seed: int | None
) -> tuple[Model, int]:
    """Return the model on a synthetic table, by default of invented or simulated rows, and its number of units."""
    relation = step.budget.relation
    if data is None:
        n_units = public_number_of_units(model, step.unit, step.unit_index, relation)
        refuse_tables_of_the_data(synthetic, model)
    else:
        if data.unit is not None:
            raise InvalidArgument(
                "A dry run beside a Table has units of one row. Where units have several, write the model twice on "
                "invented arrays, each with a pm.Data of the persons of its rows, and leave data= out: "
                "with one: dp.dry_run(budget, synthetic=another, unit='person')."
            )
        n_units = data.count_units() if relation == "substitute" else None
        synthetic = model if synthetic is None else synthetic
    if synthetic is None:
        if n_units is None:
            raise UnsupportedModel(
                "The number of units is protected under add-remove, so no table of as many rows can be simulated: pass "
                "synthetic=, the same model written on an invented table whose length is chosen from public knowledge."
            )
        if not rows_can_be_simulated(model) or step.unit_index is not None:
            raise UnsupportedModel(
                "Rows of this model have covariates, groups or several rows a unit, which only the protected table "
                "knows. Pass synthetic=: the same model, written on an invented table of about as many rows."
            )
        synthetic = on_drawn_rows(model, random_seed)
    unit_name = step.unit_index if isinstance(step.unit_index, str) else None
    n_synthetic = public_number_of_units(synthetic, step.unit, unit_name, "substitute") or 0
    if n_units is not None and abs(n_synthetic - n_units) > _ABOUT_AS_LONG * n_units:
        raise InvalidArgument(
            f"The synthetic table has {n_synthetic:,} units, the protected one {n_units:,}: the quality of a run "
            f"depends on that. Write the synthetic one with about as many: on table.invented({n_units}, seed=7)."
        )
    return synthetic, n_synthetic


def _compared(tree: DataTree, reference: DataTree, names: Sequence[str]) -> tuple[float, float, float]:
    """Return the root mean square and the largest error of means, and the coverage of intervals."""
    errors, coverages = [], []
    for name in names:
        of_both = [each["posterior"].to_dataset()[name].values for each in (tree, reference)]
        private, exact = (draws.reshape(-1, math.prod(draws.shape[2:])) for draws in of_both)
        errors.append((private.mean(axis=0) - exact.mean(axis=0)) / exact.std(axis=0))
        low, high = np.quantile(private, _INTERVAL, axis=0)
        coverages.append(np.mean((exact >= low) & (exact <= high), axis=0))
    all_errors = np.concatenate(errors)
    rms = float(np.sqrt(np.mean(all_errors**2)))
    return rms, float(np.abs(all_errors).max()), float(np.mean(np.concatenate(coverages)))
