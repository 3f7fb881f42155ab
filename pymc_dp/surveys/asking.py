"""Releases that are planned, charged and made once, without chains."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import xarray as xr
from xarray import DataTree

from pymc_dp import _validate
from pymc_dp.accounting import gaussian_epsilon
from pymc_dp.budget.plan import Plan, ReleaseRequest
from pymc_dp.budget.privacy_budget import PrivacyBudget
from pymc_dp.budget.worth import Worth
from pymc_dp.diagnostics import facts_of
from pymc_dp.exceptions import InvalidArgument, RunInterrupted, UnsupportedModel, UnsupportedOption
from pymc_dp.kinds import noise_std_of
from pymc_dp.model.context import Model
from pymc_dp.model.declared import declared_unit, refusal_of_undeclared_units
from pymc_dp.release import (
    Curators,
    InsecureNoise,
    MeteredCurator,
    NoiseSource,
    SecureNoise,
    refuse_overflow,
    warm_up_noise,
)
from pymc_dp.release.interface import Release
from pymc_dp.release.query import Query, Rows
from pymc_dp.rows.likelihood import Threads, UnitLikelihood
from pymc_dp.run.arguments import refuse_in_a_starting_process, refuse_no_budget
from pymc_dp.run.finished import reason
from pymc_dp.run.interrupts import ending_the_run
from pymc_dp.run.publish import guarantee_of
from pymc_dp.tables import Table

Ask = Callable[[Query], Release]
#: As for runs: of one unit the number of rows tells all.
_FEWEST_UNITS = 2


@dataclass(frozen=True)
class Survey:
    """What is asked once.

    Attributes
    ----------
    name : str
        What it is called in plans and results.
    requests : tuple of ReleaseRequest
        What is released.
    budget_share : float
        Part of what is left of the budget that it may spend.
    insecure_seed : int or None
        Seeds the noise, for tests: what is released is not private then.
    """

    name: str
    requests: tuple[ReleaseRequest, ...]
    budget_share: float = 1.0
    insecure_seed: int | None = None
    #: What `budget.plan` asks of a sampler besides.
    default_draws = 1

    @property
    def private(self) -> bool:
        """Whether the noise is not seeded."""
        return self.insecure_seed is None

    def stand_beside_a_table(self, beside: bool, *, units_of_rows: bool) -> None:
        """Do nothing: what is asked is the same."""

    def know_n_units(self, n_units: int) -> None:
        """Do nothing: what is asked is the same."""

    def release_requests(self, tune: int, draws: int) -> Sequence[ReleaseRequest]:
        """Return what is released."""
        return self.requests

    def what_would_fit(self, noise_factor: float) -> str:
        """Say nothing: the noise is chosen by the budget."""
        return ""

    def expected_worth(self, plan: Plan) -> Worth | None:
        """Return nothing: it is no posterior."""
        return None

    def plan(self, budget: PrivacyBudget, unit: str = "") -> Plan:
        """Return what is released, at what noise and cost.

        Raises
        ------
        BudgetExceeded
            If nothing is left of the budget.
        """
        return replace(budget.plan(self, draws=1, tune=0, chains=1), draws=0, unit=unit)


def checked_budget(budget: Any, budget_share: Any) -> tuple[PrivacyBudget, float]:
    """Return a budget and the part of it that may be spent.

    Raises
    ------
    InvalidArgument
        If it is no budget, or no part between 0 and 1.
    UnsupportedOption
        If this script is being run again by a process that it started.
    """
    refuse_in_a_starting_process()
    refuse_no_budget(budget)
    if budget is None:
        raise InvalidArgument("What is released has to be paid for: pass budget=dp.PrivacyBudget(epsilon, delta).")
    share = _validate.positive("budget_share", budget_share)
    if share > 1.0:
        raise InvalidArgument(f"budget_share must be at most 1, but is {share:g}.")
    return budget, share


def protected_unit(model: Model, unit: str | None, unit_index: Any, data: Table | None) -> dict[str, Any]:
    """Return what is protected, for `pymc_dp.model.view.read`.

    Raises
    ------
    InvalidArgument
        If `data` is no table, or something in the model reads like persons with several rows, and it was not said what
        is protected.
    UnsupportedOption
        If it was said in two places.
    """
    if data is not None and not isinstance(data, Table):
        raise InvalidArgument(f"data= must be a pymc_dp.Table, not a {type(data).__name__}.")
    if data is not None and unit_index is not None:
        raise UnsupportedOption(
            "With data=, units of several rows are named there: dp.Person, or Table(..., unit=), not unit_index=."
        )
    if unit is None and unit_index is None and (data is None or data.unit is None):
        refusal = refusal_of_undeclared_units(model)
        if refusal is not None:
            raise InvalidArgument(refusal)
    unit, unit_index = declared_unit(model, unit, unit_index)
    return {"unit": unit, "unit_index": unit_index}


@contextmanager
def rows_of_survey(likelihood: UnitLikelihood, data: Table | None) -> Iterator[Rows]:
    """Open the rows that are asked: those of a table beside the model, or the model's own."""
    if data is None:
        yield likelihood
    else:
        with data.opened(likelihood) as rows:
            yield rows


@contextmanager
def asking(
    survey: Survey, budget: PrivacyBudget, rows: Rows, results: Sequence[DataTree] = ()
) -> Iterator[tuple[Ask, dict[str, Any]]]:
    """Charge a survey, and let its queries be answered.

    Parameters
    ----------
    survey : Survey
        What is asked.
    budget : PrivacyBudget
        What is charged.
    rows : UnitLikelihood or PartitionedUnits
        Of what.
    results : sequence of DataTree
        Published results that queries depend on: where one is not private, what is released is not either.

    Yields
    ------
    callable, dict
        Answers a query; and the attributes of the ``privacy`` group.

    Raises
    ------
    BudgetExceeded
        If it does not fit what is left of the budget; nothing is charged then.
    RunInterrupted
        If it ends early, after it was charged: what was released until then is the attribute ``partial``.
    """
    if budget.relation == "substitute" and rows.n_units < _FEWEST_UNITS:
        raise UnsupportedModel("All rows belong to one unit: see unit= and unit_index=, which say what is protected.")
    plan = survey.plan(budget, rows.unit_in_words)
    (planned,) = plan.steps
    n_public = rows.n_units if budget.relation == "substitute" else None
    refuse_overflow({each.noise_needed for each in plan.releases}, rows.n_units)
    warm_up_noise()
    rows.use_threads(Threads())
    noise: NoiseSource = SecureNoise() if survey.insecure_seed is None else InsecureNoise([survey.insecure_seed])
    made: list[Release] = []

    def curator(**of_run: Any) -> MeteredCurator:
        return MeteredCurator(
            rows,
            relation=budget.relation,
            noise_multipliers=planned.noise_multipliers,
            without_noise=not budget.private,
            **of_run,
        )

    def ask(query: Query) -> Release:
        made.append(opened.release(query, planned.noise_multipliers[query.kind]))
        return made[-1]

    budget.charge(plan)
    facts = guarantee_of(plan, budget, n_public, seeded=not survey.private)
    if not all(facts_of(result)["private"] for result in results):
        why = [facts["not_private_because"], "a result that it is about is not private"]
        facts |= {"private": 0, "not_private_because": "; ".join(filter(None, why))}
    curators = Curators(curator, noise, 1, {}, planned.allowance_once, scheduled_once=planned.scheduled_once)
    try:
        with ending_the_run():
            opened = curators.open_once()
            yield ask, {**facts, "complete": 1}
    except BaseException as error:
        partial = tree_of({"releases": _as_dataset(made)}, {**facts, "complete": 0})
        raise RunInterrupted(
            f"{survey.name} ended early, after it was charged: {reason(error)}. What was released until then is this "
            "exception's attribute `partial`; nothing is refunded.",
            partial,
        ) from None
    finally:
        curators.close()


def together(facts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the attributes of the ``privacy`` group of several surveys with Gaussian releases, made one after another.

    Their costs add in rho.
    """
    rho, last = math.fsum(each["rho"] for each in facts), facts[-1]
    epsilon = gaussian_epsilon(rho, last["delta"]) if math.isfinite(rho) else math.inf
    releases = [record for each in facts for record in json.loads(each["releases"])]
    for record in releases:
        record.pop("share", None)
    return {**last, "rho": rho, "epsilon": epsilon, "releases": json.dumps(releases)}


def tree_of(groups: dict[str, xr.Dataset], facts: dict[str, Any]) -> DataTree:
    """Return what is published: groups of released numbers, and what is guaranteed."""
    of_no_sampler = {"steps": "[]", "clip_bounds": "{}", "parameters": "{}", "variables": "[]"}
    attributes = {**of_no_sampler, "omitted_because_computed_from_rows": "[]", **facts}
    return DataTree.from_dict({**groups, "privacy": xr.Dataset(attrs=attributes)})


def _as_dataset(made: Sequence[Release]) -> xr.Dataset:
    """Return releases as they are, each along a dimension of its own."""
    variables: dict[str, Any] = {}
    for number, each in enumerate(made):
        variables[f"{each.kind}_{number}"] = ((f"{each.kind}_{number}_entry",), each.value)
        variables[noise_std_of(f"{each.kind}_{number}")] = each.noise_std if math.isfinite(each.noise_std) else math.nan
    return xr.Dataset(variables)
