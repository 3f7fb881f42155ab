"""Privacy budgets: the limit of a table's privacy loss, and the loss charged so far."""

import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from pymc_dp import _validate, accounting
from pymc_dp.accounting import EPSILON_SLACK, Relation, epsilon_of_thresholds
from pymc_dp.accounting.calibrate import largest_that_fits
from pymc_dp.budget.filters import GaussianFilter, ReservedFilter, split
from pymc_dp.budget.ledger import Ledger
from pymc_dp.budget.plan import Plan, PlannableStep, ReleaseRequest, StepPlan
from pymc_dp.budget.planning import plan_run
from pymc_dp.budget.report import report_on
from pymc_dp.exceptions import BudgetExceeded, InvalidArgument


class PrivacyBudget:
    """The total privacy loss that analyses of one table may have, and the loss charged so far.

    A budget is a privacy filter: a run is charged in full before it reads the data, a run that does not fit is refused
    with `BudgetExceeded`, and nothing is ever refunded. The guarantee composes over all runs, samplers and models that
    use the budget, so use one budget for everything that is computed from one table.

    Parameters
    ----------
    epsilon : float
        Bound on the privacy loss, above 0. Smaller protects more; 1 is strong, above 5 is weak. ``math.inf`` is no
        bound: noise that the budget would choose is left out, for debugging on public or simulated data. Plans,
        warnings, results and reports then say that nothing is private, and such a budget cannot be saved.
    delta : float
        The additive term of the bound on probabilities, strictly between 0 and 1. Choose it well below 1 / n.
    relation : {"substitute", "add-remove"}
        The neighbouring relation. ``"substitute"``: one unit may be replaced by any other, the number of units is
        public. ``"add-remove"``: one unit may be missing, the number of units is protected. Values of epsilon under
        different relations cannot be compared.
    data_name : str, optional
        A public name of the table; `for_data` then refuses any other.
    reserved_share : float, optional
        Part of epsilon and delta, in [0, 1], for runs with releases on samples or Barker decisions, whose costs do not
        add in rho: each reserves an (epsilon, delta) of its own when it starts. The rest is for Gaussian runs.
        Default: the first run decides, and the whole budget is for runs of its kind.
    elsewhere : mapping of str to (float, float), optional
        Releases of other tools from the same table, by name: an epsilon and a delta each, 0 for none, stated for
        `relation`. They are set aside before the first release, and add to the cost of runs.
    delta_for_levels : float, optional
        Part of delta for `pymc_dp.find_levels`: the probability that any of its runs publishes a level that one unit
        alone has. Default: the first run decides; the delta that it requests if it finds levels, else zero.

    Raises
    ------
    InvalidArgument
        If an argument is out of range.

    Notes
    -----
    A budget is two filters. Gaussian runs add in rho, also when later runs depend on earlier results
    (`pymc_dp.budget.filters.GaussianFilter`). Reserved runs add in epsilon and in delta
    (`pymc_dp.budget.filters.ReservedFilter`). The split between the two is fixed before
    the first release: a filter whose limit depended on releases under the other filter would not be valid.

    Examples
    --------
    >>> budget = PrivacyBudget(epsilon=1.0, delta=1e-6)
    >>> round(budget.rho, 4)
    0.028
    >>> budget.epsilon_spent
    0.0
    """

    #: The sampler of a run that names none; set by `pymc_dp.run.short_form`, as this module imports no samplers.
    default_step: ClassVar[type[Any] | None] = None

    def __init__(
        self,
        epsilon: float,
        delta: float,
        relation: Relation = "substitute",
        *,
        data_name: str | None = None,
        reserved_share: float | None = None,
        elsewhere: Mapping[str, Sequence[float]] | None = None,
        delta_for_levels: float | None = None,
    ) -> None:
        unlimited = isinstance(epsilon, float) and epsilon == math.inf
        self._epsilon = math.inf if unlimited else _validate.positive("epsilon", epsilon)
        self._delta = _validate.open_unit_interval("delta", delta)
        self._relation: Relation = _validate.choice("relation", relation, accounting.RELATIONS)
        self._elsewhere = _entries(elsewhere)
        #: The epsilon and delta that other tools leave for runs of this budget.
        self._here = (
            self._epsilon - math.fsum(each[0] for each in self._elsewhere.values()),
            self._delta - math.fsum(each[1] for each in self._elsewhere.values()),
        )
        if self._elsewhere and not (self._here[0] > 2.0 * EPSILON_SLACK and self._here[1] > 0.0):
            raise InvalidArgument("elsewhere= leaves nothing: epsilon and delta are of all tools together.")
        self._for_levels: float | None = None
        if delta_for_levels is not None:
            self._for_levels = _validate.not_negative("delta_for_levels", delta_for_levels)
            self._refuse_beyond(self._for_levels, 0.0)
        if self._epsilon <= 2.0 * EPSILON_SLACK:
            raise InvalidArgument(f"epsilon must be above {2.0 * EPSILON_SLACK:g}, but is {epsilon:g}.")
        if data_name is not None and (not isinstance(data_name, str) or not data_name):
            raise InvalidArgument("data_name must be a name that is not empty.")
        self._data_name = data_name
        if reserved_share is not None:
            reserved_share = _validate.not_negative("reserved_share", reserved_share)
            if reserved_share > 1.0:
                raise InvalidArgument(f"reserved_share must be at most 1, but is {reserved_share:g}.")
        self._reserved_share = reserved_share
        self._filters(())[0].limit()  # refuses an epsilon beyond the range of the accounting
        self._spent: list[Plan] = []
        self._ledger: Ledger | None = None
        self._lock = threading.RLock()
        self._process = os.getpid()

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "PrivacyBudget":
        """Return the budget saved at `path`; it is charged through that file from now on.

        Raises
        ------
        InvalidArgument
            If the file does not exist, is damaged, of an unknown format, or its figures do not agree.
        BudgetFileError
            If the file cannot be read now.
        """
        ledger = Ledger(path)
        try:
            budget = cls(**ledger.facts())
        except TypeError:
            raise InvalidArgument(f"{ledger.path} does not hold the facts of a budget.") from None
        budget._refuse_to_be_kept()
        earlier: list[Plan] = []
        for plan in ledger.history():
            try:
                budget._check(plan, earlier)
            except BudgetExceeded:
                raise InvalidArgument(f"{ledger.path} is inconsistent: more was spent than there is.") from None
            earlier.append(plan)
        budget._ledger = ledger
        return budget

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the budget to a new file; it is charged through that file from now on.

        `PrivacyBudget.load` then gives the same budget to any number of processes, which see each other's charges.
        A copy of the file is another budget: do not copy it.

        Raises
        ------
        InvalidArgument
            If the file exists, the budget has been saved before or was made in another process, or its epsilon is
            infinite.
        BudgetFileError
            If the file cannot be written.
        """
        self._refuse_to_be_kept()
        with self._lock:
            self._refuse_other_processes()
            if self._ledger is not None:
                raise InvalidArgument(
                    f"This budget is kept in {self._ledger.path}, where every charge is written as it is made: nothing "
                    "is left to save, and a second file could be spent a second time."
                )
            there_was = Ledger.is_there(path)
            try:
                self._ledger = Ledger.create(path, self._facts(), self._spent)
            except InvalidArgument:
                raise
            except BaseException:
                # An interrupt, or a folder that cannot be synchronised: the file may exist already, and would be
                # charged separately from this object.
                if not there_was and Ledger.is_there(path):
                    self._ledger = Ledger(path)
                raise

    def _refuse_other_processes(self) -> None:
        """Refuse an unsaved budget in another process than the one that made it: each would spend it in full."""
        if self._ledger is None and os.getpid() != self._process:
            raise InvalidArgument(
                "This budget was made in another process, which cannot see what is spent here. Save it "
                "(budget.save(path)) before starting processes: they then share it."
            )

    def _facts(self) -> dict[str, Any]:
        """Return the arguments that make the same budget, as plain data."""
        facts: dict[str, Any] = {
            "epsilon": self._epsilon,
            "delta": self._delta,
            "relation": self._relation,
            "data_name": self._data_name,
            "reserved_share": self._reserved_share,
        }
        if self._elsewhere:
            facts["elsewhere"] = {tool: list(spent) for tool, spent in self._elsewhere.items()}
        if self._for_levels is not None:
            facts["delta_for_levels"] = self._for_levels
        return facts

    def unspent(self) -> "PrivacyBudget":
        """Return an unspent budget with the same arguments, bound to no table: for dry runs on synthetic tables."""
        return PrivacyBudget(**{**self._facts(), "data_name": None})

    def _refuse_to_be_kept(self) -> None:
        """Refuse to save a budget of infinite epsilon, which guarantees nothing."""
        if not self.private:
            raise InvalidArgument("A budget of infinite epsilon guarantees nothing and cannot be saved.")

    def for_data(self, data_name: str) -> "PrivacyBudget":
        """Return this budget if it is for the table of that name; pass the result to a step.

        Raises
        ------
        InvalidArgument
            If the budget is for another table, or for none in particular.
        """
        if data_name != self._data_name:
            bound = "is bound to no table" if self._data_name is None else f"is for {self._data_name!r}"
            raise InvalidArgument(f"This budget {bound}, not for {data_name!r}. Use the budget of that table.")
        return self

    @property
    def data_name(self) -> str | None:
        """The public name of the table, if one was given."""
        return self._data_name

    @property
    def epsilon(self) -> float:
        """The bound on the total privacy loss of all runs charged to this budget."""
        return self._epsilon

    @property
    def private(self) -> bool:
        """Whether the bound is finite; with an infinite epsilon, runs add no noise except what their settings give."""
        return math.isfinite(self._epsilon)

    @property
    def delta(self) -> float:
        """The probability with which the bound may fail."""
        return self._delta

    @property
    def relation(self) -> Relation:
        """The neighbouring relation."""
        return self._relation

    @property
    def elsewhere(self) -> Mapping[str, tuple[float, float]]:
        """Epsilon and delta of other tools' releases from the same table by name, set aside before the first run."""
        return dict(self._elsewhere)

    @property
    def history(self) -> tuple[Plan, ...]:
        """The plans of all charged runs, of all processes, in order."""
        return tuple(self._spent if self._ledger is None else self._ledger.history())

    @property
    def rho(self) -> float:
        """The budget for Gaussian runs, as a total cost of Gaussian releases."""
        return self._filters(self.history)[0].limit()

    @property
    def rho_spent(self) -> float:
        """The rho charged by Gaussian runs so far."""
        history = self.history
        return self._filters(history)[0].spent(history)

    @property
    def remaining_rho(self) -> float:
        """The rho left for Gaussian runs; a remainder within rounding counts as zero."""
        history = self.history
        return self._filters(history)[0].left(history)

    @property
    def epsilon_spent(self) -> float:
        """The epsilon, at this budget's delta, of all charges so far."""
        history = self.history
        gaussian, reserved, _ = self._filters(history)
        elsewhere = self._epsilon - self._here[0] if self._elsewhere else 0.0
        elsewhere += epsilon_of_thresholds(_spent_on_levels(history))
        return min(gaussian.epsilon_of(gaussian.spent(history)) + reserved.spent(history)[0] + elsewhere, self._epsilon)

    @property
    def delta_left_for_levels(self) -> float | None:
        """The part of delta left for finding levels; None where the first run decides."""
        history = self.history
        aside = self._for_levels if not history else self._levels_share(history)
        return None if aside is None else max(aside - _spent_on_levels(history), 0.0)

    def _filters(
        self, history: Sequence[Plan], aside: float | None = None
    ) -> tuple[GaussianFilter, ReservedFilter, GaussianFilter]:
        """Return the filters of Gaussian runs, of reserved runs, and of Gaussian runs with the whole budget.

        All three exclude the delta for finding levels, `aside`. Without a `reserved_share` the first run
        decides on the split; until then each kind of run has the whole.
        """
        aside = self._levels_share(history) if aside is None else aside
        epsilon, delta = self._here
        limits = epsilon - epsilon_of_thresholds(aside), delta - aside, self._relation
        alone, share = split(*limits, 0.0)[0], self._reserved_share
        if share is None and not history:
            return alone, split(*limits, 1.0)[1], alone
        if share is None:
            share = 1.0 if history[0].account == "reserved" else 0.0
        return *split(*limits, share), alone

    def _levels_share(self, history: Sequence[Plan]) -> float:
        """Return the part of delta for finding levels: the user's, or that of the first run."""
        if self._for_levels is not None:
            return self._for_levels
        return history[0].of_thresholds if history else 0.0

    def _refuse_beyond(self, aside: float, spent: float) -> None:
        """Refuse a part of delta for finding levels that leaves nothing for runs, and spending beyond that part."""
        if not (aside < self._here[1] and epsilon_of_thresholds(aside) < self._here[0] - 2.0 * EPSILON_SLACK):
            raise InvalidArgument(f"Finding levels cannot have {aside:.3g} of a delta of {self._delta:.3g}.")
        if spent > aside * (1.0 + 1e-12):
            raise BudgetExceeded(
                f"Finding levels would have spent {spent:.3g} of delta, for which {aside:.3g} was set aside before the "
                "first run. Name all columns in one call that is the first run, or set it aside: "
                "dp.PrivacyBudget(epsilon, delta, delta_for_levels=...)."
            )

    def report(self) -> str:
        """Return a page for a privacy reviewer: the guarantee, the theorems behind it, and its limits."""
        return report_on(self._facts(), self.history, self.epsilon_spent)

    def plan(
        self,
        step: PlannableStep | Sequence[PlannableStep] | None = None,
        *,
        draws: int | None = None,
        tune: int = 0,
        chains: int = 4,
        data: Any = None,
        unit: str | None = None,
        unit_index: Any = None,
    ) -> Plan:
        """Return the releases of a run and their noise, without spending anything.

        Parameters
        ----------
        step : DP step, or sequence of DP steps, optional
            The sampler, with its settings. Default: the default sampler of `pm.sample`. Some samplers need the
            number of units: inside ``with model:`` they read it from the model, where it is public.
            ``step.budget_share`` is the part of the remaining budget that it may use. The shares of several steps of
            one run add up; a sum above 1 is scaled down to 1.
        draws, tune : int
            Kept and tuning iterations of each chain. Both are charged. Default of draws: the step's own.
        chains : int
            Number of chains. All are charged.
        data : pymc_dp.Table, optional
            The table that would be passed to the run. Its units are counted, where their number is public.
        unit, unit_index
            The unit of privacy, as in `pymc_dp.sample`.

        Returns
        -------
        Plan
            Print it for a table.

        Raises
        ------
        BudgetExceeded
            If nothing is left, or so little that each release would be pure noise.
        InvalidArgument
            If `draws`, `tune` or `chains` is out of range, `step` is not a DP step, or the unit of privacy has to be
            declared and is not.
        """
        steps = self._steps(step, unit, unit_index)
        if data is not None:
            if not hasattr(data, "count_units"):
                raise InvalidArgument(f"data= must be a pymc_dp.Table, not a {type(data).__name__}.")
            n_units = data.count_units() if self._relation == "substitute" else None
            for one in steps:
                one.stand_beside_a_table(True, units_of_rows=data.unit is not None)
                if n_units is not None:
                    one.know_n_units(n_units)
        history = self.history
        hidden = math.fsum(getattr(one, "of_thresholds", 0.0) for one in steps)
        aside = hidden if self._for_levels is None and not history else self._levels_share(history)
        self._refuse_beyond(aside, _spent_on_levels(history) + hidden)
        plan = plan_run(
            steps,
            history,
            self._filters(history, aside),
            draws=max(one.default_draws for one in steps) if draws is None else draws,
            tune=tune,
            chains=chains,
            budget=f"epsilon {self._epsilon:g} at delta {self._delta:g}",
            sets_aside=self._reserved_share is not None,
        )
        return replace(plan, worth=steps[0].expected_worth(plan)) if len(steps) == 1 and self.private else plan

    def _steps(
        self,
        step: PlannableStep | Sequence[PlannableStep] | None,
        unit: str | None = None,
        unit_index: Any = None,
    ) -> list[PlannableStep]:
        """Return the steps of a run, with this budget where they were made without one; refuse other objects."""
        if step is None and self.default_step is not None:
            step = self.default_step()
        steps: list[Any] = list(step) if isinstance(step, list | tuple) else [step]
        if not steps:
            raise InvalidArgument("A run needs at least one step.")
        if unit is not None or unit_index is not None:
            steps = [one.protecting(unit, unit_index) if hasattr(one, "protecting") else one for one in steps]
        steps = [one.with_budget(self) if hasattr(one, "with_budget") else one for one in steps]
        for one in steps:
            if isinstance(one, type) or not hasattr(one, "release_requests"):
                given = f"the class {one.__name__} itself" if isinstance(one, type) else f"a {type(one).__name__}"
                raise InvalidArgument(f"step must be a sampler such as dp.DPSurrogateHMC(), but is {given}.")
        return steps

    def max_draws(self, step: PlannableStep | Sequence[PlannableStep], *, tune: int = 0, chains: int = 4) -> int:
        """Return the largest number of draws per chain that the remaining budget allows at the given noise.

        Parameters
        ----------
        step : DP step, or sequence of DP steps
            As in `plan`. The noise of all releases has to be given: by ``noise_multipliers``, or by settings of the
            dynamics such as ``friction``, or, of `DPBarker`, by the test itself.
        tune : int
            Tuning iterations of each chain, which are charged, too.
        chains : int
            Number of chains.

        Returns
        -------
        int
            0 if not a single draw fits the remaining budget.

        Raises
        ------
        InvalidArgument
            If the budget would choose the noise of some releases: any number of draws then fits, with more noise.

        Notes
        -----
        Algorithm 2 of Räisä (2021, Differentially private Metropolis-Hastings algorithms, University of Helsinki),
        extended to all releases of a run, and exact: the largest number for which `plan` does not raise
        `BudgetExceeded`. With ``clip_diagnostics=None`` no counts of clipped units are charged.
        """
        if not self.private:
            raise InvalidArgument("A budget of infinite epsilon affords any number of draws.")
        steps = self._steps(step)
        for one in steps:
            requests = one.release_requests(_validate.whole("tune", tune, at_least=0), 1)
            chosen = [each.kind for each in requests if isinstance(each, ReleaseRequest)]
            if chosen:
                raise InvalidArgument(
                    f"The budget chooses the noise of {one.name}'s releases ({', '.join(dict.fromkeys(chosen))}), so "
                    "that any number of draws fits, with more noise the more there are. Give the noise "
                    "(noise_multipliers=, or the setting of the dynamics that asks for it), or look at "
                    "budget.plan(step, draws=...)."
                )

        def fits(draws: int) -> bool:
            try:
                self.plan(steps, draws=draws, tune=tune, chains=chains)
            except BudgetExceeded:
                return False
            return True

        return largest_that_fits(fits)

    def charge(self, plan: Plan) -> None:
        """Charge the cost of a plan, computed anew from the plan's releases; it is never refunded.

        Raises
        ------
        BudgetExceeded
            If the plan does not fit the remaining budget. Nothing is changed then.
        InvalidArgument
            If the plan was made for another neighbouring relation, or costs more than it states; or an unsaved
            budget is charged in another process than the one that made it.
        BudgetFileError
            If the file of a saved budget is gone, locked or cannot be written. Nothing is changed then.
        """
        if not isinstance(plan, Plan):
            raise InvalidArgument(
                f"What is charged is a plan, as budget.plan(step) makes it, not a {type(plan).__name__}."
            )
        self._refuse_other_processes()
        with self._lock:
            if plan.account == "reserved" and self.private:
                self._filters(())[1].cost(plan)  # cached before the file is locked, so that other processes do not wait
            if self._ledger is not None:
                self._ledger.append(plan, lambda history: self._check(plan, history))
                return
            self._check(plan, self._spent)
            self._spent.append(plan)

    def charge_elsewhere(
        self, tool: str, *, noise_multiplier: float, relation: Relation, count: int = 1, unit: str = ""
    ) -> None:
        """Charge Gaussian releases that another tool has made from the same table; the entry cannot be verified.

        Releases of other tools with other noise have to be declared before the first run: see `elsewhere`.

        Parameters
        ----------
        tool : str
            Name of the tool, for reports.
        noise_multiplier : float
            Standard deviation of the noise in one release over the L2 sensitivity of the released vector.
        relation : {"substitute", "add-remove"}
            The neighbouring relation of the sensitivity.
        count : int
            Number of releases.
        unit : str
            Their unit of privacy, in words.

        Raises
        ------
        InvalidArgument
            If an argument is out of range, or the relation is not the budget's.
        BudgetExceeded
            If the entry does not fit the remaining budget. Nothing is entered then, and the guarantee does not cover
            those releases.
        """
        if not isinstance(tool, str) or not tool:
            raise InvalidArgument("tool must be a name that is not empty.")
        if relation != self._relation:
            raise InvalidArgument(
                f"The entry is for the relation {relation!r}, this budget for {self._relation!r}: restate the entry. A "
                "noise multiplier under substitute is at worst half of that under add-remove."
            )
        noise = _validate.positive("noise_multiplier", noise_multiplier)
        made = (accounting.GaussianReleases("elsewhere", _validate.whole("count", count, at_least=1), noise),)
        *_, alone = self._filters(self.history)
        steps = (StepPlan(sampler=f"{tool} (entered by hand)", label="", chains=1, once=made, in_chains=()),)
        spent = alone.epsilon_of(made[0].rho)
        self.charge(Plan(1, 0, 0, self._relation, steps, spent, alone.delta, unit=str(unit)))

    def _check(self, plan: Plan, history: Sequence[Plan]) -> None:
        """Raise unless the plan states its cost correctly and fits the budget that the history leaves."""
        if plan.relation != self._relation:
            raise InvalidArgument(
                f"The plan is for the relation {plan.relation!r}, this budget is for {self._relation!r}: "
                "figures of different relations cannot be added. Make the plan with this budget."
            )
        accounting.check_relation(plan.releases, self._relation)
        if plan.coordinates + sum(past.coordinates for past in history) > accounting.MAX_COORDINATES:
            raise BudgetExceeded(f"All runs together release at most {accounting.MAX_COORDINATES:.0e} noisy numbers.")
        limits = history or (plan,)  # the first run decides on the splits that the user has left open
        self._refuse_beyond(self._levels_share(limits), _spent_on_levels([*history, plan]))
        gaussian, reserved, _ = self._filters(limits)
        (gaussian if plan.account == "rho" else reserved).check(plan, history)

    def __repr__(self) -> str:
        mark = "" if self.private else "NOT PRIVATE: "
        return (
            f"{mark}PrivacyBudget(epsilon={self._epsilon:g}, delta={self._delta:g}, relation={self._relation!r}, "
            f"epsilon_spent={self.epsilon_spent:.4g}, runs={len(self.history)})"
        )

    def __copy__(self) -> "PrivacyBudget":
        return self  # a copy could be spent a second time

    def __deepcopy__(self, memo: dict[int, Any]) -> "PrivacyBudget":
        return self

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        if self._ledger is None:
            raise TypeError("A PrivacyBudget cannot be pickled: a copy could be spent a second time. Save it first.")
        return PrivacyBudget.load, (str(self._ledger.path),)


def _spent_on_levels(history: Sequence[Plan]) -> float:
    """Return the delta that runs have spent on finding levels."""
    return math.fsum(plan.of_thresholds for plan in history)


def _entries(elsewhere: Any) -> dict[str, tuple[float, float]]:
    """Return the epsilon and delta of other tools as plain numbers; refuse other values."""
    found = {}
    for tool, spent in (elsewhere or {}).items() if isinstance(elsewhere or {}, Mapping) else [("", ())]:
        if not (isinstance(tool, str) and tool and isinstance(spent, list | tuple) and len(spent) == 2):
            raise InvalidArgument('elsewhere= must be an epsilon and a delta by name: {"means": (1.0, 0.0)}.')
        found[tool] = (
            _validate.not_negative(f"The epsilon of {tool!r}", spent[0]),
            _validate.not_negative(f"The delta of {tool!r}", spent[1]),
        )
    return found
