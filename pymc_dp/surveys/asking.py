"""Surveys: releases that are planned, charged and made once, without chains; and their published form."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pandas as pd
import xarray as xr
from xarray import DataTree

from pymc_dp import _validate
from pymc_dp.budget.plan import Plan, ReleaseRequest
from pymc_dp.budget.privacy_budget import PrivacyBudget
from pymc_dp.budget.worth import Worth
from pymc_dp.exceptions import InvalidArgument, RunInterrupted, UnsupportedOption
from pymc_dp.kinds import noise_std_of
from pymc_dp.model.context import Model
from pymc_dp.model.units import declared_unit, refusal_of_undeclared_units, refuse_single_rows
from pymc_dp.model.view import ModelView, read
from pymc_dp.release import Curators, InsecureNoise, MeteredCurator, SecureNoise, refuse_overflow, warm_up_noise
from pymc_dp.release.interface import Release
from pymc_dp.release.query import Query, Rows
from pymc_dp.reports.published import facts_of
from pymc_dp.reports.quality import quality
from pymc_dp.rows.levels import UnitLevels
from pymc_dp.rows.likelihood import UnitLikelihood
from pymc_dp.run.finished import ending_the_run, reason
from pymc_dp.run.publish import guarantee_of
from pymc_dp.run.refusals import (
    refuse_forgotten_table,
    refuse_in_a_starting_process,
    refuse_no_budget,
    refuse_no_table,
    refuse_one_unit,
    unit_in_model,
    warn,
    warn_about_budget,
)
from pymc_dp.tables import Category, Table, YesNo

Ask = Callable[[Query], Release]


@dataclass(frozen=True)
class Survey:
    """Releases that are made once, with the interface of a sampler that a budget can plan: see `PlannableStep`."""

    name: str
    requests: tuple[ReleaseRequest, ...]
    budget_share: float = 1.0  # part of the remaining budget that the survey may spend
    insecure_seed: int | None = None  # seeds the noise, for tests: the releases are not private then
    default_draws = 1

    @property
    def of_thresholds(self) -> float:
        """The part of delta spent on thresholds, in addition to the cost of noise."""
        return math.fsum(each.count * each.delta for each in self.requests if each.delta is not None)

    @property
    def private(self) -> bool:
        """Whether the noise is secure: not seeded."""
        return self.insecure_seed is None

    def stand_beside_a_table(self, beside: bool, *, units_of_rows: bool) -> None:
        """Do nothing: the requests do not depend on the table."""

    def know_n_units(self, n_units: int) -> None:
        """Do nothing: the requests do not depend on the number of units."""

    def release_requests(self, tune: int, draws: int) -> Sequence[ReleaseRequest]:
        """Return the requests."""
        return self.requests

    def what_would_fit(self, noise_factor: float) -> str:
        """Return no advice: the budget chooses the noise."""
        return ""

    def expected_worth(self, plan: Plan) -> Worth | None:
        """Return None: a survey has no posterior."""
        return None

    def plan(self, budget: PrivacyBudget, unit: str = "") -> Plan:
        """Return the releases with their noise and cost; refuse if nothing is left of the budget."""
        return replace(budget.plan(self, draws=1, tune=0, chains=1), draws=0, unit=unit)


def checked_budget(budget: Any, budget_share: Any) -> tuple[PrivacyBudget, float]:
    """Return a budget and the part of it that may be spent; refuse other values.

    Also refuses to run in a child process that executes a script without a ``__main__`` guard again.
    """
    refuse_in_a_starting_process()
    refuse_no_budget(budget)
    if budget is None:
        raise InvalidArgument("What is released has to be paid for: pass budget=dp.PrivacyBudget(epsilon, delta).")
    return budget, _validate.part_of_one("budget_share", budget_share)


def view_of(
    model: Model, unit: str | None, unit_index: Any, data: Table | None, *, with_response: bool = False
) -> ModelView:
    """Read a model, with the unit of privacy.

    Refuses a model with variables that look like persons with several rows, unless the unit was declared.
    """
    refuse_no_table(data)
    refuse_forgotten_table(data, model)
    if data is not None and unit_index is not None:
        raise UnsupportedOption(
            "With data=, units of several rows are named there: dp.Person, or Table(..., unit=), not unit_index=."
        )
    unit = unit_in_model(unit, data)
    refuse_single_rows(unit, units_of_rows=data is not None and data.unit is not None)
    if unit is None and unit_index is None and (data is None or data.unit is None):
        refusal = refusal_of_undeclared_units(model)
        if refusal is not None:
            raise InvalidArgument(refusal)
    unit, unit_index = declared_unit(model, unit, unit_index)
    return read(model, unit=unit, unit_index=unit_index, with_response=with_response)


def _warn_about_unusable(results: Sequence[DataTree]) -> None:
    """Warn about results that their own quality report calls not usable: a survey would describe their errors."""
    for result in results:
        if "sample_stats" in result and (reasons := quality(result).reasons_against):
            warn(
                f"The quality report of this result calls it NOT usable ({reasons[0]}): answers describe its draws, "
                "and say little of the model."
            )


@contextmanager
def asking(
    survey: Survey,
    budget: PrivacyBudget,
    likelihoods: Sequence[UnitLikelihood | UnitLevels],
    tables: Sequence[Table | None] = (None,),
    results: Sequence[DataTree] = (),
) -> Iterator[tuple[list[Ask], dict[str, Any]]]:
    """Charge a survey, and yield functions that release its queries, and the attributes of the group ``privacy``.

    There is one function for each table and likelihood, in the order of `itertools.product`, which evaluates queries
    on the table's rows, or on the likelihood's own rows where the table is None. The survey's requests belong to the
    likelihoods in turn: the first request to the first likelihood, and so on. No two tables have a unit in common: a
    unit changes one table, and the releases of the others do not depend on it, so that the survey is charged once
    (parallel composition). `results` are the published results that queries depend on: if one of them is not private,
    the releases are not either. If the budget does not suffice, nothing is charged. A survey that ends early, after it
    was charged, raises `RunInterrupted` with the releases until then.
    """
    with ExitStack() as stack:
        parts: list[Rows | UnitLevels] = []
        for data, likelihood in itertools.product(tables, likelihoods):
            if data is None or isinstance(likelihood, UnitLevels):
                parts.append(likelihood)
            else:
                parts.append(stack.enter_context(data.opened(likelihood, budget.relation)))
        n_units = sum(rows.n_units for rows in parts[:: len(likelihoods)])
        refuse_one_unit(budget.relation, n_units)
        warn_about_budget(budget, n_units)
        _warn_about_unusable(results)
        plan = survey.plan(budget, parts[0].unit_in_words)
        (planned,) = plan.steps
        n_public = n_units if budget.relation == "substitute" else None
        refuse_overflow({each.noise_needed for each in plan.releases}, n_units)
        warm_up_noise()
        made: list[Release] = []

        def ask(metered: MeteredCurator, query: Query) -> Release:
            made.append(metered.release(query, planned.noise_multipliers[query.kind]))
            return made[-1]

        budget.charge(plan)
        facts = guarantee_of(plan, budget, n_public, seeded=not survey.private)
        if not all(facts_of(result)["private"] for result in results):
            why = [facts["not_private_because"], "a result that it is about is not private"]
            facts |= {"private": 0, "not_private_because": "; ".join(filter(None, why))}
        curators = []
        for place, rows in enumerate(parts):
            seed = None if survey.insecure_seed is None else [survey.insecure_seed, *([place] if place else [])]
            noise = SecureNoise() if seed is None else InsecureNoise(seed)
            make_curator = partial(MeteredCurator, rows, relation=budget.relation, without_noise=not budget.private)
            paid = planned.once[place % len(likelihoods) :: len(likelihoods)]
            curators.append(Curators(make_curator, noise, 1, (), paid))
        try:
            with ending_the_run():
                yield [partial(ask, each.open_once()) for each in curators], {**facts, "complete": 1}
        except BaseException as error:
            released: dict[str, Any] = {}  # each release along a dimension of its own
            for name, each in ((f"{each.kind}_{number}", each) for number, each in enumerate(made)):
                released[name] = ((f"{name}_entry",), each.value)
                released[noise_std_of(name)] = each.noise_std if math.isfinite(each.noise_std) else math.nan
            raise RunInterrupted(
                f"{survey.name} ended early, after it was charged: {reason(error)}. What was released until then is "
                "this exception's attribute `partial`; nothing is refunded.",
                tree_of({"releases": xr.Dataset(released)}, {**facts, "complete": 0}),
            ) from None
        finally:
            for one in curators:
                one.close()


def tree_of(groups: dict[str, xr.Dataset], facts: dict[str, Any]) -> DataTree:
    """Return the published tree: groups of released numbers, and the guarantee."""
    of_no_sampler = {"steps": "[]", "clip_bounds": "{}", "parameters": "{}", "variables": "[]"}
    attributes = {**of_no_sampler, "omitted_because_computed_from_rows": "[]", **facts}
    return DataTree.from_dict({**groups, "privacy": xr.Dataset(attrs=attributes)})


def heading(facts: dict[str, Any], subject: str, note: str = "", *, with_units: bool = False) -> str:
    """Return the first lines of a printed survey: a warning where it is not private, its subject and its guarantee."""
    private = "" if facts["private"] else f"NOT PRIVATE: {facts['not_private_because']}\n"
    n = f"{facts['n_units']:,} units, " if with_units and "n_units" in facts else ""
    guarantee = f"epsilon {facts['epsilon']:.3g} at delta {facts['delta']:.3g}, {facts['relation']}"
    return f"{private}{subject} ({n}{guarantee}{note})"


def levels_of(column: Any) -> tuple[str, ...]:
    """Return the names of the codes of a declared category or truth value; none for other columns."""
    if isinstance(column, Category):
        return column.all_levels
    return ("no", "yes") if isinstance(column, YesNo) else ()


def four_digits(table: pd.DataFrame, **options: Any) -> str:
    """Return a table as text, with numbers of four digits."""
    return str(table.to_string(float_format=lambda value: f"{value:.4g}", **options))
