"""`sample`: plan the whole run, charge it, sample with PyMC, publish the result.

A PyMC step does not know the number of chains and cannot change the returned tree. `sample` therefore has
`pm.sample`'s signature and calls it.
"""

import contextlib
import dataclasses
import functools
import inspect
import logging
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np
import pymc as pm
import xarray as xr
from pymc.progress_bar import create_simple_progress
from pymc.sampling.mcmc import get_default_tune_steps
from pymc.sampling.parallel import _cpu_count
from pymc.step_methods.compound import CompoundStep
from xarray import DataTree

from pymc_dp.budget.plan import Plan, StepPlan
from pymc_dp.budget.privacy_budget import PrivacyBudget
from pymc_dp.exceptions import RunInterrupted, UnsupportedModel, UnsupportedOption
from pymc_dp.memory import memory_of_this_machine
from pymc_dp.model.centring import form_of
from pymc_dp.model.context import Model, model_in_context, refuse_bambi_statistics
from pymc_dp.model.parameters import ParameterVector, value_variables
from pymc_dp.model.posterior import Posterior, places_of, priors_of
from pymc_dp.model.prior import warn_about_prior_constants
from pymc_dp.model.protected import PublishableNames
from pymc_dp.model.starts import initial_values, starting_points
from pymc_dp.model.units import public_number_of_units
from pymc_dp.model.view import ModelView, read
from pymc_dp.release import (
    Curators,
    InsecureNoise,
    MeteredCurator,
    NoiseSource,
    SecureNoise,
    refuse_overflow,
    warm_up_noise,
)
from pymc_dp.rows import Simulation, SyntheticTable, UnitLikelihood
from pymc_dp.rows.partitioned import PartitionedUnits
from pymc_dp.run import refusals
from pymc_dp.run.finished import FinishedDraws, Interrupted, end_of_run, ending_the_run, reason
from pymc_dp.run.publish import metadata, publish
from pymc_dp.run.short_form import chosen_length, log_chosen_length, steps_with_budget
from pymc_dp.steps.access import Authorisation
from pymc_dp.steps.base import DPStep, StepGroup
from pymc_dp.steps.prelude.approximation import Approximation
from pymc_dp.tables import Table

# SciPy's Fourier transforms, which ArviZ's diagnostics use, start threads at the first call, even without workers. A
# fork may wait for these threads for ever.
os.environ.setdefault("DUCC0_NUM_THREADS", "1")

#: PyMC's own logger: messages come in one log with PyMC's of the run.
_log = logging.getLogger("pymc")
_pymc_sample: Callable[..., Any] = pm.sample

#: Seconds after which a run reports that it compiles the model.
_NOTICE_AFTER = 5.0
#: Number of rows simulated from the model where no synthetic table is given.
_SIMULATED_ROWS = 4000


def sample(draws: int | None = None, **options: Any) -> DataTree:
    """Draw from the posterior with a differentially private step: plan the run, charge its budget, call `pm.sample`.

    `pm.sample` works, too, once `pymc_dp` is imported: it passes calls with a DP step to this function.

    Parameters
    ----------
    draws : int, optional
        Kept iterations of each chain. Default: the sampler's own; the budget is spread over all of them.
    **options
        As in `pm.sample`, with these differences: ``step`` is a DP step, or several that share a budget, which together
        update all free variables; ``budget`` is the budget of steps that were made without one, and without a
        step the default sampler is used; ``unit`` and ``unit_index`` are the unit of privacy (see
        `pymc_dp.steps.base.DPStep`); ``chains`` defaults to 4;
        ``data`` is a `pymc_dp.Table`, the protected table where the model itself holds invented rows;
        ``tune`` defaults to that of the step (0 for most: tuning is charged); ``initvals`` default to draws
        from the prior, and given values are treated as public; ``random_seed`` never determines privacy noise;
        ``target_accept``, ``max_treedepth`` and other settings of NUTS apply if NUTS draws (Notes).
        Options that would return values computed from the data without noise are refused.

    Returns
    -------
    DataTree
        Groups ``posterior``, ``sample_stats``, ``privacy`` (attributes: the guarantee and its mechanisms) and
        ``releases`` (every noisy gradient and log-ratio with its position). No group holds data.

    Raises
    ------
    BudgetExceeded
        If the run does not fit the remaining budget; nothing is changed then.
    UnsupportedModel
        If the likelihood is not a product over units.
    UnsupportedOption
        If an option cannot be combined with a DP step.
    UnsupportedTable, TableChanged, WorkersLost
        If the table ``data=`` cannot be used, changes, or its workers are gone.
    RunInterrupted
        If the run ended early, after it was charged, by an error: the attribute ``partial`` holds its draws.

    Notes
    -----
    Everything that can fail on bad input fails before the budget is charged. Once it is charged, the cost of
    all iterations of all chains is spent, also when the run is interrupted or crashes. The completed draws are not
    lost: one Ctrl-C ends the whole run, and returns them; after an error they are the attribute ``partial`` of the
    exception; exceptions of a callback are raised unchanged, with that attribute. The attributes of the ``privacy``
    group then have ``complete`` 0, the number of draws of each chain and the reason of the end. ``posterior`` holds a
    rectangle of chains and draws, ``partial_posterior`` all draws, ``releases`` all releases.

    Where a step releases nothing in its chains, PyMC's NUTS draws from the priors times the released likelihood, and
    tunes itself.
    """
    return _Run(draws, options).result()


def release(step: DPStep, model: Model, data: Table | None, random_seed: Any, progressbar: Any) -> DataTree:
    """Charge a run and make its step's releases before the chains; draw nothing. Arguments as in `sample`."""
    options = {"step": step, "model": model, "data": data, "random_seed": random_seed, "progressbar": progressbar}
    return _Run(1, {**options, "tune": 0, "chains": 1}, draws_follow=False).result()


def sample_invented_rows(**options: Any) -> DataTree:
    """Do what `sample` does on rows that were invented, as those of a template are."""
    return _Run(options.pop("draws"), options, are_invented=True).result()


def sample_without_privacy(**options: Any) -> DataTree:
    """Draw from the posterior of a synthetic table, or of a public one, with PyMC's own samplers."""
    tree: DataTree = _pymc_sample(**options)
    return tree


class _Run:
    """One private run in five stages: `open`, `prepare`, `charge`, `run` and `publish`, in this order.

    The constructor checks the arguments, and reads no row. Chains are drawn only if `draws_follow`.
    """

    # Set by `open`, or by `prepare` where there is no table.
    view: ModelView
    template: UnitLikelihood  # of the model's own rows, which are invented where there is a table
    rows: UnitLikelihood | PartitionedUnits  # the protected rows
    # Set by `prepare`.
    plan: Plan
    names: PublishableNames
    n_units: int | None  # None where it is protected
    priors: Model
    keep_warmup: bool

    def __init__(
        self, draws: int | None, options: dict[str, Any], *, draws_follow: bool = True, are_invented: bool = False
    ) -> None:
        refusals.refuse_in_a_starting_process()
        refusals.refuse_wrong_budget_or_step(options)
        if not refusals.is_private(options):
            refusals.refuse_budget("pymc_dp.sample", [draws], options)
        given_budget, data = options.pop("budget", None), options.pop("data", None)
        refusals.refuse_no_table(data)
        units = {name: options.pop(name, None) for name in ("unit", "unit_index")}
        units["unit"] = refusals.unit_in_model(units["unit"], data)
        refusals.refuse_stray_budget({"draws": draws, **options})
        settings = inspect.signature(_pymc_sample).bind(draws, **options)
        settings.apply_defaults()
        #: The arguments of `pm.sample`; `prepare` completes them.
        self.arguments = dict(settings.arguments)
        refusals.refuse_wrong_types(self.arguments)
        of_steps = self.arguments.pop("kwargs")
        of_nuts = {name: of_steps.pop(name) for name in refusals.OF_NUTS if name in of_steps}
        refusals.refuse_unsupported_options(self.arguments, of_steps)
        written = model_in_context(self.arguments["model"])
        step = steps_with_budget(self.arguments["step"], given_budget, written, **units)
        if not are_invented:
            refusals.refuse_forgotten_table(data, written)
        self.model = form_of(written, [var.name for one in refusals.dp_steps(step) for var in one.vars])
        self.group = refusals.group_of_steps(step, value_variables(self.model))
        self.of_nuts = refusals.settings_of_nuts(of_nuts, self.group.steps)
        self.group.stand_beside_a_table(data is not None, units_of_rows=data is not None and data.unit is not None)
        refuse_bambi_statistics(written)
        self.budget: PrivacyBudget = self.group.budget
        self.data: Table | None = data
        self.of_table: PartitionedUnits | None = None
        self.synthetic_tables: list[SyntheticTable | Simulation | None] = []
        self.are_invented = are_invented
        self.draws_follow, self.finished = draws_follow, FinishedDraws(self.arguments["callback"])
        # Set by `run`.
        self.tree = DataTree()
        self.facts: dict[str, Any] | None = None
        self.ended_by: BaseException | None = None

    def result(self) -> DataTree:
        """Make the run, and return the published tree."""
        with contextlib.ExitStack() as stack:
            with self._compile_notice():
                self.open(stack)
                self.prepare()
            self.charge()
            self.run()
            return self.publish()

    def _inform(self, words: str) -> None:
        if not self.arguments["quiet"]:
            _log.info(words)

    @contextlib.contextmanager
    def _compile_notice(self) -> Iterator[None]:
        """Log that the model is being compiled, if that takes long; later runs read it from a cache."""
        words = (
            "Compiling the model: up to a minute the first time; later runs take it from PyTensor's cache. Nothing is "
            "charged yet."
        )
        timer = threading.Timer(_NOTICE_AFTER, self._inform, [words])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    @contextlib.contextmanager
    def _bar(self, words: str, planned: StepPlan) -> Iterator[Callable[[], None]]:
        """Show a progress bar of a step's releases before the chains; yield a function that counts one release.

        Depending on the noise, a step may make fewer releases than planned.
        """
        n_planned, made = sum(each.count for each in planned.once), 0
        self._inform(f"{words}: {n_planned} releases.")
        shown = bool(self.arguments["progressbar"]) and not self.arguments["quiet"]
        bar = create_simple_progress(shown, self.arguments["progressbar_theme"])
        with bar:
            task = bar.add_task(words, completed=0, total=n_planned)

            def noted() -> None:
                nonlocal made
                made += 1
                with contextlib.suppress(Exception):  # an error of the bar must not end a run that was charged
                    bar.update(task, completed=made, description=f"{words}: {made} of {n_planned} releases")

            yield noted

    def open(self, stack: contextlib.ExitStack) -> None:
        """Open the table, if there is one, and set the steps' number of units, where that is public."""
        relation, group = self.budget.relation, self.group
        if self.data is None:
            n_units = public_number_of_units(self.model, group.unit, group.unit_index, relation)
        else:
            self._read()
            self.rows = self.of_table = stack.enter_context(self.data.opened(self.template, relation))
            self.template = self.of_table.template  # its units have several rows where the table says so
            n_units = self.rows.n_units if relation == "substitute" else None
        if n_units is not None:
            group.know_n_units(n_units)

    def _read(self) -> None:
        """Read the model, and compile the likelihood of its own rows."""
        self.view = read(self.model, self.group.unit, self.group.unit_index)
        expands = [each.expands for each in self.group.steps]
        self.template = UnitLikelihood(self.view, first_order=not all(expands), expands=any(expands))
        self.rows = self.template

    def prepare(self) -> None:
        """Plan the run, complete its arguments, and make all checks that can fail, before the charge."""
        arguments, steps, budget = self.arguments, self.group.steps, self.budget
        self._inform("The model is read and checked; nothing is charged yet.")
        step = steps[0] if len(steps) == 1 else CompoundStep(steps)
        tune = get_default_tune_steps(step, arguments["tune"])
        cores, mp_ctx = self._processes()
        draws, chains, chosen = chosen_length(steps, arguments["draws"], arguments["chains"])
        plan = budget.plan(steps, draws=draws, tune=tune, chains=chains)  # refuses early, before the slow work
        refusals.refuse_bad_values(arguments, self.model, plan)
        if self.of_table is None:
            self._read()
        view, rows = self.view, self.rows
        refusals.refuse_one_unit(budget.relation, rows.n_units)
        view.refuse_rows_in_starts(arguments["initvals"])
        self.names = view.publishable(arguments["var_names"])
        self.plan = dataclasses.replace(plan, unit=rows.unit_in_words)
        refusals.warn_about_budget(budget, rows.n_units)
        if self.of_table is None and not self.are_invented and budget.relation == "substitute":  # the number is public
            refusals.warn_about_copies_of_a_template(self.template.n_rows)
            refusals.refuse_other_axis(self.group.unit, view)
        warn_about_prior_constants(self.model)  # public: no prior depends on rows
        log_chosen_length(chosen, self.plan)
        refuse_overflow({each.noise_needed for each in plan.releases if each.adds_noise}, rows.n_units)
        initvals = arguments["initvals"] or initial_values(self.model)
        for each in steps:
            each.keep_starts(arguments["initvals"] is not None)
        seed = _given_seed(arguments["random_seed"], self.group)
        starting_points(self.model, view.parameters, initvals, seed, chains, view.prior)
        self.template.warm_up()
        warm_up_noise()
        self.n_units = rows.n_units if budget.relation == "substitute" else None
        self._dry_run_all()
        if self.of_table is not None:
            self.of_table.refuse_changes()
        self.keep_warmup = not arguments["discard_tuned_samples"]
        arguments |= {"draws": draws, "tune": tune, "chains": chains, "cores": cores, "mp_ctx": mp_ctx, "step": step}
        arguments |= {"model": self.model, "var_names": self.names.kept, "initvals": initvals, "random_seed": seed}
        # Tuning draws are kept, as the result has their releases, which are charged.
        arguments |= {"discard_tuned_samples": False, "callback": self.finished}
        self.priors = priors_of(self.model, self.names.kept)  # before the charge, as it refuses some models

    def _processes(self) -> tuple[int, Any]:
        """Return the number of chains that run at a time, and the start method of their processes.

        Where the workers of a cluster compute, several processes on this machine gain little.
        """
        cores, mp_ctx = self.arguments["cores"], self.arguments["mp_ctx"]
        if self.of_table is None or self.of_table.may_be_forked:
            return (min(4, _cpu_count()) if cores is None else cores), mp_ctx
        if mp_ctx is not None and getattr(mp_ctx, "get_start_method", lambda: mp_ctx)() == "fork":
            raise UnsupportedOption("A client of a cluster cannot be forked: leave out mp_ctx, or pass 'spawn'.")
        return (1 if cores is None else cores), "spawn" if mp_ctx is None else mp_ctx

    def _dry_run_all(self) -> None:
        """Make the steps' synthetic tables, and dry runs on them; refuse a run that needs too much memory."""
        for step, planned in zip(self.group.steps, self.plan.steps, strict=True):
            tables: SyntheticTable | Simulation | None = None
            if step.expands and step.simulates:
                tables = Simulation(self.view, self.template, _SIMULATED_ROWS)
            elif step.expands and step.synthetic is not None:
                tables = SyntheticTable(step.synthetic, step.parameters.shapes, step.unit, step.unit_index)
            self.synthetic_tables.append(tables)
            n_synthetic = 0 if tables is None else tables.stand_in().n_units
            needed, available = step.memory_needed(self.n_units, n_synthetic), memory_of_this_machine()
            if needed > available:
                raise UnsupportedModel(
                    f"{type(step).__name__} works with curvatures, which for {step.size} parameters take about "
                    f"{needed / 2**30:.3g} GiB of memory; this machine has {available / 2**30:.3g}. Use fewer "
                    "parameters: effects of groups; those of each person would be published, and are integrated out of "
                    "the likelihood. Or use a shorter synthetic table, or a sampler without curvatures, such as DPHMC."
                )
            if tables is not None:
                self._dry_run(step, tables, planned)

    def _dry_run(self, step: DPStep, tables: SyntheticTable | Simulation, planned: StepPlan) -> None:
        """Run a step's releases before the chains on synthetic rows, with the same ratio of noise to units.

        Where the number of units is protected, the ratio would depend on it: the noise is then that of the plan.
        """
        stand_in, n_units = tables.stand_in(), self.n_units
        planned = planned.with_noise_times(1.0 if n_units is None else stand_in.n_units / n_units)
        curators = Curators(self._curator_of(stand_in), InsecureNoise([0]), 1, (), planned.once)
        authorisation = self._authorisation(curators, planned, tables, stand_in, n_units and stand_in.n_units)
        with contextlib.closing(curators), self._bar("Dry run on synthetic rows, at no cost", planned) as noted:
            step.dry_run_with(authorisation, noted)

    def _authorisation(
        self,
        curators: Curators,
        planned: StepPlan,
        tables: SyntheticTable | Simulation | None,
        rows: UnitLikelihood | PartitionedUnits,
        n_units: int | None,
        epsilon: float = 0.0,
    ) -> Authorisation:
        """Return a step's access to its planned releases from these rows, with their public facts."""
        return Authorisation(
            curators,
            self.view.prior,
            planned.noise_multipliers,
            epsilon_charged=epsilon,
            synthetic_tables=tables,
            n_units=n_units,
            noise_schedules=planned.noise_schedules,
            knows_responses=rows.knows_responses,
            structure=rows.structure,
            unidentified=rows.unidentified,
        )

    def _curator_of(
        self, rows: UnitLikelihood | PartitionedUnits, exact_counts: bool = False
    ) -> Callable[..., MeteredCurator]:
        """Return a picklable constructor of curators of rows under this budget."""
        return functools.partial(
            MeteredCurator,
            rows,
            relation=self.budget.relation,
            exact_counts=exact_counts,
            without_noise=not self.budget.private,
        )

    def charge(self) -> None:
        """Charge the plan, which is never refunded."""
        self.budget.charge(self.plan)
        self._inform(f"{_spent(self.budget)} What this run releases is paid for; nothing is refunded.")

    def run(self) -> None:
        """Make the releases and the draws, and keep an error that ends the run early."""
        try:
            with ending_the_run():
                with self._authorised():
                    self.facts = self._facts()
                    drawn_from = self.group.steps[0].drawn_from
                    if self.draws_follow and drawn_from is None:
                        self.tree = _pymc_sample(**self.arguments)
                if self.draws_follow and drawn_from is not None:
                    self.finished.chains_release, seed = False, self.arguments["random_seed"]
                    self.arguments |= self._arguments_of_nuts(*drawn_from, seed)
                    self.tree = _pymc_sample(**self.arguments)
        except BaseException as error:
            self.ended_by = error

    def _arguments_of_nuts(self, known: Approximation, likelihood: xr.Dataset, seed: Any) -> dict[str, Any]:
        """Return arguments of `pm.sample` that draw from a released likelihood's posterior by PyMC's own NUTS.

        The priors contain nothing of the rows (`priors_of`); the likelihood is added to them. The covariance of the
        draws of `known` gives the mass matrix, and chains start at such draws: a short tuning is enough. The seed
        determines public randomness alone.
        """
        order, rng = np.argsort(places_of(likelihood, ParameterVector(self.priors))), np.random.default_rng(seed)
        covariance = (known.kernel.spread @ known.kernel.spread.T)[np.ix_(order, order)]
        starts = [known.theta(known.start(rng))[order] for _ in range(self.plan.chains)]
        posterior = Posterior(self.priors, likelihood, covariance, known.kernel.mean[order])
        return posterior.arguments_of_sample(starts, **self.of_nuts)

    @contextlib.contextmanager
    def _authorised(self) -> Iterator[None]:
        """Give the steps access for one run of the charged plan, and withdraw it however the run ends."""
        plan, budget, rows, all_curators = self.plan, self.budget, self.rows, []
        spent = budget.epsilon_spent
        for step in self.group.steps:
            step.renew()
        try:
            for place, (step, planned) in enumerate(zip(self.group.steps, plan.steps, strict=True)):
                noise: NoiseSource = SecureNoise()
                if step.insecure_seed is not None:
                    noise = InsecureNoise([step.insecure_seed, place])
                make_curator = self._curator_of(rows, step.clip_diagnostics == "exact")
                curators = Curators(make_curator, noise, plan.chains, planned.of_one_chain, planned.once)
                all_curators.append(curators)
                tables = self.synthetic_tables[place]
                authorisation = self._authorisation(curators, planned, tables, rows, self.n_units, spent)
                if not planned.once:
                    step.authorise(authorisation)
                    continue
                with self._bar(f"Search, epsilon {budget.epsilon_spent:.3g} spent", planned) as noted:
                    step.authorise(authorisation, noted)
            yield
        finally:
            for step in self.group.steps:
                step.withdraw()
            for curators in all_curators:
                curators.close()

    def _facts(self) -> dict[str, Any]:
        """Return the result's metadata, with the declared schema of a table."""
        facts = metadata(self.plan, self.group, self.names, self.n_units)
        return facts | ({"schema": self.of_table.declared} if self.of_table and self.of_table.declared else {})

    def publish(self) -> DataTree:
        """Return the published tree; raise an error that ended the run, with the draws made by then."""
        plan, error = self.plan, self.ended_by
        iterations = self.finished.iterations(plan.chains)
        end = end_of_run(error, iterations, plan.tune, plan.draws)
        if not self.draws_follow and error is None:
            end = {"complete": 1}
        if error is not None or not end["complete"]:
            self.tree = self.finished.tree(self.arguments["model"], plan.tune, self.arguments["idata_kwargs"])
        result = publish(
            self.tree,
            self.finished,
            self.group,
            plan=plan,
            facts={**(self.facts or self._facts()), **end},
            names=self.names,
            keep_warmup=self.keep_warmup,
        )
        no_draw = not any(iterations) and isinstance(error, ValueError) and str(error).startswith("Not enough samples")
        if isinstance(error, KeyboardInterrupt | Interrupted) or no_draw:  # PyMC raises ValueError without any draw
            kept = "its draws" if "posterior" in result else "no draw"
            if "private_likelihood" in result:
                free = "from which dp.PrivateLikelihood(result, model).sample() draws at no cost"
                kept += f", and the whole likelihood, {free}"
            _log.warning(
                f"The run was interrupted after it was charged. {_spent(self.budget)} It stays spent: the result holds "
                f"what was released until then (group releases), and {kept}."
            )
        elif error is not None:
            self._raise_with(result, error)
        return result

    def _raise_with(self, partial: DataTree, error: BaseException) -> NoReturn:
        """Raise the error that ended the run, with the draws made until then.

        Errors of the user's callback, and exceptions that end the program, are raised unchanged. Messages of other
        errors may hold data: they are replaced.
        """
        if self.finished.callback_failed or not isinstance(error, Exception):
            with contextlib.suppress(AttributeError):  # some exceptions take no attributes
                error.partial = partial  # type: ignore[attr-defined]
                error.add_note("What the private run had drawn until then is this exception's attribute `partial`.")
            raise error
        interrupted = RunInterrupted(
            f"The run ended early, after it was charged: {reason(error)}. What it had drawn and released until then is "
            "this exception's attribute `partial`; nothing is refunded.",
            partial,
        )
        interrupted.__context__ = error  # for a debugger: tracebacks do not show it
        raise interrupted from None


def _given_seed(random_seed: Any, group: StepGroup) -> Any:
    """Return the seed of public randomness: the user's, or a fresh one, which fixes the starting points in advance."""
    if random_seed is not None:
        return random_seed
    return np.random.SeedSequence().entropy if group.random_seed is None else group.random_seed


def _spent(budget: PrivacyBudget) -> str:
    return f"Epsilon {budget.epsilon_spent:.3g} of {budget.epsilon:g} is spent, at delta {budget.delta:g}."
