"""`sample`: plan the whole run, charge it, sample with PyMC, publish what may leave.

A PyMC step is not told how many chains there will be and has no say in the returned tree. `sample` therefore has
`pm.sample`'s signature and calls it.
"""

import contextlib
import dataclasses
import functools
import inspect
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pymc as pm
from pymc.sampling.mcmc import get_default_tune_steps
from pymc.sampling.parallel import _cpu_count
from pymc.step_methods.compound import CompoundStep, flatten_steps
from pytensor.graph.basic import Variable
from xarray import DataTree

from pymc_dp import _validate
from pymc_dp.accounting import NO_NOISE
from pymc_dp.budget.plan import Plan, StepPlan
from pymc_dp.budget.privacy_budget import PrivacyBudget
from pymc_dp.exceptions import InvalidArgument, RunInterrupted, UnsupportedModel, UnsupportedOption
from pymc_dp.memory import memory_of_this_machine
from pymc_dp.model.bambi_models import refuse_bambi_statistics
from pymc_dp.model.context import Model, model_in_context
from pymc_dp.model.parameters import value_variables
from pymc_dp.model.posterior import priors_of
from pymc_dp.model.prior_density import Prior
from pymc_dp.model.protected import PublishableNames
from pymc_dp.model.starts import refuse_wrong_starts
from pymc_dp.model.units import number_of_units
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
from pymc_dp.release.interface import ReleasesOfIteration
from pymc_dp.rows import Simulation, SyntheticTable, UnitLikelihood
from pymc_dp.rows.likelihood import Threads
from pymc_dp.rows.partitioned import PartitionedUnits
from pymc_dp.run.arguments import (
    dp_steps,
    is_private,
    refuse_budget,
    refuse_in_a_starting_process,
    refuse_stray_budget,
    refuse_what_is_no_budget,
)
from pymc_dp.run.finished import FinishedDraws, how_it_ended, reason
from pymc_dp.run.free_draws import arguments_of_nuts
from pymc_dp.run.interrupts import Interrupted, ending_the_run
from pymc_dp.run.options import refuse_wrong_types
from pymc_dp.run.progress import Progress
from pymc_dp.run.publish import metadata, publish
from pymc_dp.run.short_form import chosen_length, say_what_was_chosen, steps_with_budget
from pymc_dp.steps.access import Authorisation, SyntheticTables
from pymc_dp.steps.base import DPStep
from pymc_dp.steps.group import StepGroup
from pymc_dp.tables import Table

#: PyMC's own logger: what is said stands beside what PyMC says of the run.
_log = logging.getLogger("pymc")
_pymc_sample: Callable[..., Any] = pm.sample

#: Stands for a number of draws that is yet to be chosen.
_PLACEHOLDER = 1
#: Warnings name the caller's line, whether `sample` or `pm.sample` was called.
_PACKAGE = str(Path(__file__).parent)
#: How many rows are simulated from the model where no synthetic table is given.
_SIMULATED_ROWS = 1000
#: Options of `pm.sample` whose other values would return or store more than releases.
_ALLOWED_IDATA_OPTIONS = {"include_transformed"}
_PROGRESS_BARS = (True, False, "combined", "split", "combined+stats", "stats+combined", "split+stats", "stats+split")


def sample(draws: int | None = None, **options: Any) -> DataTree:
    """Draw from the posterior with a differentially private step: plan the run, charge its budget, call `pm.sample`.

    `pm.sample` works, too, once `pymc_dp` is imported: it hands calls with a DP step to this function.

    Parameters
    ----------
    draws : int, optional
        Kept iterations of each chain. Default: what suits the sampler; the budget is spread over all of them.
    **options
        As in `pm.sample`. Different here: ``step`` is a DP step, or several that share a budget, which together
        update all free variables; ``budget`` is that of the steps that were made without one, and where there is no
        step a sampler is chosen; ``unit`` and ``unit_index`` say what is protected (see `pymc_dp.steps.base.DPStep`);
        ``chains`` defaults to 4;
        ``data`` is a `pymc_dp.Table`, the protected table where the model itself stands on invented rows;
        ``tune`` defaults to what the step wants (0 for most: tuning is paid for); ``initvals`` default to draws
        from the prior, and values that you pass are treated as public; ``random_seed`` never determines privacy noise.
        Options that would return anything computed from the data without noise are refused.

    Returns
    -------
    DataTree
        Groups ``posterior``, ``sample_stats``, ``privacy`` (attributes: what was guaranteed, and how) and
        ``releases`` (every noisy gradient and log-ratio with its position). No group holds data.

    Raises
    ------
    BudgetExceeded
        If the run does not fit what is left of the budget; nothing is changed then.
    UnsupportedModel
        If the likelihood is not a product over units.
    UnsupportedOption
        If an option cannot be combined with a DP step.
    UnsupportedTable, TableChanged, WorkersLost
        If what was passed as ``data=`` cannot be used as it is, changes, or its workers are gone.
    RunInterrupted
        If the run ended early, after it was charged, by an error: what it had drawn is the attribute ``partial``.

    Notes
    -----
    Everything that can fail on bad input fails before the budget is charged. Once it is charged, the cost of
    all iterations of all chains is spent, also when the run is interrupted or crashes. What had been drawn comes
    back: one Ctrl-C ends the whole run, and it is returned; after an error it is the attribute ``partial`` of the
    exception; what a callback raises is raised as it is, with that attribute. The attributes of the ``privacy`` group
    then have ``complete`` 0, the number of draws of each chain and why the run ended. ``posterior`` holds as many of
    the draws as make a rectangle of chains and draws, ``partial_posterior`` all of them, ``releases`` all releases.

    Where a step releases nothing in its chains, PyMC's NUTS draws from the priors times the released likelihood, and
    tunes itself.
    """
    return _run(draws, options)


def release(step: DPStep, model: Model, data: Table | None, random_seed: Any, progressbar: Any) -> DataTree:
    """Charge a run and release what its step learns before the chains; draw nothing. Arguments as of `sample`."""
    settings = {"step": step, "model": model, "data": data, "random_seed": random_seed, "progressbar": progressbar}
    return _run(1, {**settings, "tune": 0, "chains": 1}, draws_follow=False)


def _run(draws: int | None, options: dict[str, Any], *, draws_follow: bool = True) -> DataTree:
    """Complete and check the arguments of a run, and make it."""
    refuse_in_a_starting_process()
    refuse_what_is_no_budget(options)
    if not is_private(options):
        refuse_budget("pymc_dp.sample", [draws], options)
    given_budget, data = options.pop("budget", None), _table(options.pop("data", None))
    units = {name: options.pop(name, None) for name in ("unit", "unit_index")}
    refuse_stray_budget({"draws": draws, **options})
    settings = inspect.signature(_pymc_sample).bind(_PLACEHOLDER if draws is None else draws, **options)
    settings.apply_defaults()
    arguments = dict(settings.arguments)
    refuse_wrong_types(arguments)
    _refuse_unsupported_options(arguments, arguments.pop("kwargs"))
    model = model_in_context(arguments["model"])
    group = _dp_step_group(steps_with_budget(arguments["step"], given_budget, model, **units), value_variables(model))
    group.stand_beside_a_table(data is not None, units_of_rows=data is not None and data.unit is not None)
    refuse_bambi_statistics(model)
    with contextlib.ExitStack() as until_the_end:
        if data is None:
            _tell_n_units(group, model)
            return _sampled(arguments, draws, model, group, None, draws_follow)
        view = read(model, group.unit, group.unit_index)
        rows = until_the_end.enter_context(data.opened(_likelihood(view, group)))
        if group.budget.relation == "substitute":
            group.know_n_units(rows.n_units)
        return _sampled(arguments, draws, model, group, (view, rows), draws_follow)


def _sampled(
    arguments: dict[str, Any],
    draws: int | None,
    model: Model,
    group: StepGroup,
    beside: tuple[ModelView, PartitionedUnits] | None,
    draws_follow: bool,
) -> DataTree:
    """Plan the run, check all that can fail, charge it and run it.

    `beside` is a table beside the model, which holds invented rows then, and what was read of the model.
    """
    budget, progress = group.budget, Progress(arguments)
    progress.say("The model is read and checked; nothing is charged yet.")
    step = group.steps[0] if len(group.steps) == 1 else CompoundStep(group.steps)
    tune = get_default_tune_steps(step, arguments["tune"])
    cores, mp_ctx = _processes(arguments, beside is None or beside[1].may_be_forked)
    draws, chains, chosen = chosen_length(group.steps, draws, arguments["chains"])
    plan = budget.plan(group.steps, draws=draws, tune=tune, chains=chains)  # refuses early, before the slow work
    _refuse_bad_options(arguments, model, plan)

    rows: UnitLikelihood | PartitionedUnits
    if beside is None:
        view = read(model, group.unit, group.unit_index)
        rows = template = _likelihood(view, group)
    else:
        view, rows = beside
        template = rows.template
    if budget.relation == "substitute" and rows.n_units < 2:
        raise UnsupportedModel("All rows belong to one unit: see unit= and unit_index=, which say what is protected.")
    view.refuse_rows_in_starts(arguments["initvals"])
    names = view.publishable(arguments["var_names"])
    plan = dataclasses.replace(plan, unit=rows.unit_in_words, row_engine=rows.engine_name)
    if not budget.private:
        _warn_about_infinite_epsilon()
    _warn_about_delta(budget, rows)
    view.warn_about_prior_constants()
    say_what_was_chosen(chosen, plan)
    refuse_overflow({each.noise_needed for each in plan.releases if each.adds_noise}, rows.n_units)
    initvals = arguments["initvals"] or view.default_starts
    for each in group.steps:
        each.keep_starts(arguments["initvals"] is not None)
    seed = _given_seed(arguments["random_seed"], group)
    view.starting_points(initvals, seed, chains)
    template.warm_up()
    warm_up_noise()
    n_public = _public_number_of_units(rows, budget.relation)
    synthetic_tables = [_synthetic_tables(one, view, template) for one in group.steps]
    for one, tables, planned in zip(group.steps, synthetic_tables, plan.steps, strict=True):
        _refuse_too_much_memory(one, tables, n_public)
        if tables is not None:
            n_planned = sum(planned.allowance_once.values())
            with progress.releases("Dry run on synthetic rows, at no cost", n_planned) as noted:
                _dry_run(one, tables, n_public, view.prior, planned, budget, noted)
    # Before the chains start all cores are idle; then the chains share them. The bits do not depend on it.
    there_are = _cpu_count()
    rows.use_threads(Threads(there_are, max(1, there_are // min(cores, chains))))
    if beside is not None:
        beside[1].refuse_changes()

    settings_of_run = {
        "draws": draws,
        "model": model,
        "step": step,
        "tune": tune,
        "chains": chains,
        "cores": cores,
        "mp_ctx": mp_ctx,
        "var_names": names.kept,
        "initvals": initvals,
        "random_seed": seed,
    }
    charged = {**arguments, **settings_of_run}
    priors = priors_of(model, names.kept)  # what cannot be written anew is refused before the charge
    found = charged, plan, group, rows, view.prior, synthetic_tables, names
    return _run_charged(*found, priors if draws_follow else None, progress)


def _processes(arguments: dict[str, Any], may_be_forked: bool) -> tuple[int, Any]:
    """Return how many chains run at a time, and how their processes are made.

    Where the workers of a cluster compute, chains of several processes of this machine gain little.
    """
    cores, mp_ctx = arguments["cores"], arguments["mp_ctx"]
    if may_be_forked:
        return (min(4, _cpu_count()) if cores is None else cores), mp_ctx
    if mp_ctx is not None and getattr(mp_ctx, "get_start_method", lambda: mp_ctx)() == "fork":
        raise UnsupportedOption("A client of a cluster cannot be forked: leave out mp_ctx, or pass 'spawn'.")
    return (1 if cores is None else cores), "spawn" if mp_ctx is None else mp_ctx


def _likelihood(view: ModelView, group: StepGroup) -> UnitLikelihood:
    """Return the likelihood of the model's own rows."""
    expands = [each.expands for each in group.steps]
    return UnitLikelihood(view, first_order=not all(expands), second_order=any(expands))


def _table(data: Any) -> Table | None:
    """Return what was passed as ``data=``.

    Raises
    ------
    InvalidArgument
        If it is no table.
    """
    if data is None or isinstance(data, Table):
        return data
    raise InvalidArgument(
        f'data= must be a pymc_dp.Table, not a {type(data).__name__}: dp.Table(frame, x=["age"], y="default").'
    )


def sample_without_privacy(**options: Any) -> DataTree:
    """Draw from the posterior of a synthetic table, or of a public one, with PyMC's own samplers."""
    tree: DataTree = _pymc_sample(**options)
    return tree


def _run_charged(
    arguments: dict[str, Any],
    plan: Plan,
    group: StepGroup,
    rows: UnitLikelihood | PartitionedUnits,
    prior: Prior,
    synthetic_tables: Sequence[SyntheticTables | None],
    names: PublishableNames,
    priors: Model | None,
    progress: Progress,
) -> DataTree:
    """Charge the plan, run it, and return what may leave; raise what ended the run, with what it had drawn by then.

    Nothing is drawn without `priors`.
    """
    finished, ended_by = FinishedDraws(arguments["callback"]), None
    tree, facts = DataTree(), None
    # Releases made while tuning are paid for, too.
    in_chains = {**arguments, "discard_tuned_samples": False, "callback": finished}
    group.budget.charge(plan)
    progress.say(f"{_spent(group.budget)} What this run releases is paid for; nothing is refunded.")
    try:
        with ending_the_run():
            with _authorised(plan, group, rows, prior, synthetic_tables, progress):
                facts = _facts(plan, group, names, rows)
                drawn_from = group.steps[0].drawn_from
                if priors is not None and drawn_from is None:
                    tree = _pymc_sample(**in_chains)
            if priors is not None and drawn_from is not None:
                seed, finished.chains_release = arguments["random_seed"], False
                in_chains |= arguments_of_nuts(priors, *drawn_from, plan.chains, seed)
                tree = _pymc_sample(**in_chains)
    except BaseException as error:
        ended_by = error
    iterations = finished.iterations(plan.chains)
    end = how_it_ended(ended_by, iterations, plan.tune, plan.draws)
    if priors is None and ended_by is None:
        end = {"complete": 1}
    if ended_by is not None or not end["complete"]:
        tree = finished.tree(in_chains["model"], plan.tune, arguments["idata_kwargs"])
    result = publish(
        tree,
        [step.released_once for step in group.steps],
        finished,
        plan=plan,
        facts={**(facts or _facts(plan, group, names, rows)), **end},
        names=names,
        parameters=group.steps[0].parameters.labels,
        moved=[step.labels for step in group.steps],
        keep_releases=group.keep_releases,
        keep_warmup=not arguments["discard_tuned_samples"],
        likelihood=group.steps[0].likelihood,
    )
    if isinstance(ended_by, KeyboardInterrupt | Interrupted) or _stopped_before_the_first_draw(ended_by, iterations):
        _say_what_is_left(result, group.budget)
    elif ended_by is not None:
        _raise_with(result, ended_by, own=finished.callback_failed)
    return result


def _spent(budget: PrivacyBudget) -> str:
    """Say what is spent of a budget."""
    return f"Epsilon {budget.epsilon_spent:.3g} of {budget.epsilon:g} is spent, at delta {budget.delta:g}."


def _say_what_is_left(result: DataTree, budget: PrivacyBudget) -> None:
    """Say what an interrupted run has spent, and what there is of it."""
    kept = "its draws" if "posterior" in result else "no draw"
    if "private_likelihood" in result:
        kept += ", and the whole likelihood, from which dp.PrivateLikelihood(result, model).sample() draws at no cost"
    _log.warning(
        f"The run was interrupted after it was charged. {_spent(budget)} It stays spent: the result holds what was "
        f"released until then (group releases), and {kept}."
    )


def _given_seed(random_seed: Any, group: StepGroup) -> Any:
    """Return the seed of public randomness: the user's, or a fresh one, so that starting points are known before."""
    if random_seed is not None:
        return random_seed
    return np.random.SeedSequence().entropy if group.random_seed is None else group.random_seed


def _facts(
    plan: Plan, group: StepGroup, names: PublishableNames, rows: UnitLikelihood | PartitionedUnits
) -> dict[str, Any]:
    """Return the result's metadata."""
    declared = {"schema": rows.declared} if isinstance(rows, PartitionedUnits) and rows.declared else {}
    return {**metadata(plan, group, names, _public_number_of_units(rows, plan.relation)), **declared}


def _stopped_before_the_first_draw(error: BaseException | None, iterations: Sequence[int]) -> bool:
    """Return whether PyMC was interrupted, which it does not raise, and complains of having no draws."""
    return not any(iterations) and isinstance(error, ValueError) and str(error).startswith("Not enough samples")


def _raise_with(partial: DataTree, error: BaseException, *, own: bool) -> NoReturn:
    """Raise what ended a run, with what had been drawn until then.

    What the user's callback raised, and what ends the program, is raised as it is. Messages of other errors may
    hold data: they are replaced.
    """
    if own or not isinstance(error, Exception):
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


@contextlib.contextmanager
def _authorised(
    plan: Plan,
    group: StepGroup,
    rows: UnitLikelihood | PartitionedUnits,
    prior: Prior,
    synthetic_tables: Sequence[SyntheticTables | None],
    progress: Progress,
) -> Iterator[None]:
    """Let the steps run once on a plan that has been charged, and take that back however the run ends."""
    budget, all_curators = group.budget, []
    spent = budget.epsilon_spent
    for step in group.steps:
        step.released_once = ReleasesOfIteration(())
        step.forget()
    try:
        for place, (step, planned) in enumerate(zip(group.steps, plan.steps, strict=True)):
            noise: NoiseSource = SecureNoise()
            if step.insecure_seed is not None:
                noise = InsecureNoise([step.insecure_seed, place])
            make_curator = functools.partial(
                MeteredCurator,
                rows,
                relation=budget.relation,
                noise_multipliers=planned.noise_multipliers,
                exact_counts=step.clip_diagnostics == "exact",
                without_noise=not budget.private,
            )
            curators = Curators(
                make_curator,
                noise,
                plan.chains,
                planned.allowance,
                planned.allowance_once,
                scheduled=planned.scheduled,
                scheduled_once=planned.scheduled_once,
            )
            all_curators.append(curators)
            authorisation = Authorisation(
                curators,
                prior,
                planned.noise_multipliers,
                spent,
                synthetic_tables[place],
                _public_number_of_units(rows, budget.relation),
                planned.noise_schedules,
                rows.knows_responses,
                rows.structure,
            )
            if not planned.once:
                step.authorise(authorisation)
                continue
            with progress.releases(
                f"Search, epsilon {budget.epsilon_spent:.3g} spent", sum(planned.allowance_once.values())
            ) as noted:
                step.authorise(authorisation, noted)
        yield
    finally:
        for step in group.steps:
            step.withdraw()
        for curators in all_curators:
            curators.close()


def _dry_run(
    step: DPStep,
    tables: SyntheticTable | Simulation,
    n_units: int | None,
    prior: Prior,
    planned: StepPlan,
    budget: PrivacyBudget,
    noted: Callable[[], None],
) -> None:
    """Let a step do on synthetic rows what it does before the chains start, with noise in the same proportion.

    Where the number of units is protected, so is what the proportion would tell: with the noise of the plan then.
    """
    stand_in = tables.stand_in()
    fewer = 1.0 if n_units is None else stand_in.n_units / n_units
    multipliers = {kind: each if each <= NO_NOISE else fewer * each for kind, each in planned.noise_multipliers.items()}
    make_curator = functools.partial(
        MeteredCurator,
        stand_in,
        relation=budget.relation,
        noise_multipliers=multipliers,
        without_noise=not budget.private,
    )
    curators = Curators(make_curator, InsecureNoise([0]), 1, {}, planned.allowance_once)
    try:
        step.dry_run_with(
            Authorisation(
                curators,
                prior,
                multipliers,
                0.0,
                tables,
                None if n_units is None else stand_in.n_units,
                knows_responses=stand_in.knows_responses,
                structure=stand_in.structure,
            ),
            noted,
        )
    finally:
        curators.close()


def _refuse_too_much_memory(step: DPStep, tables: SyntheticTable | Simulation | None, n_units: int | None) -> None:
    """Refuse a run that would take more memory than there is.

    Raises
    ------
    UnsupportedModel
        If it would.
    """
    n_synthetic = 0 if tables is None else tables.stand_in().n_units
    needed, there_is = step.memory_needed(n_units, n_synthetic), memory_of_this_machine()
    if needed > there_is:
        raise UnsupportedModel(
            f"{type(step).__name__} works with curvatures, which for {step.size} parameters take about "
            f"{needed / 2**30:.3g} GiB of memory; this machine has {there_is / 2**30:.3g}. Use fewer parameters "
            "(effects of groups instead of one for each person), a shorter synthetic table, or a sampler without "
            "curvatures, such as DPHMC."
        )


def _synthetic_tables(step: DPStep, view: ModelView, rows: UnitLikelihood) -> SyntheticTable | Simulation | None:
    """Return where a step that expands takes its synthetic tables from."""
    if step.expands and step.simulates:
        return Simulation(view, rows, _SIMULATED_ROWS)
    if step.expands and step.synthetic is not None:
        return SyntheticTable(step.synthetic, step.parameters.shapes, step.unit, step.unit_index)
    return None


def _public_number_of_units(rows: UnitLikelihood | PartitionedUnits, relation: str) -> int | None:
    """Return how many units there are; None where that is protected."""
    return rows.n_units if relation == "substitute" else None


def _tell_n_units(group: StepGroup, model: Model) -> None:
    """Tell steps that draw batches of a fixed size how many units there are, where that is public."""
    if group.budget.relation == "substitute":
        group.know_n_units(number_of_units(model, group.unit, group.unit_index))


def _dp_step_group(step: Any, value_vars: Sequence[Variable]) -> StepGroup:
    """Return the DP steps, which together have to update every free variable, each of them once."""
    found = dp_steps(step)
    if not found:
        raise UnsupportedOption("pymc_dp.sample needs step=: a differentially private step such as DPHMC.")
    moved = [var for one in found for var in one.vars]
    if any(var not in value_vars for var in moved):
        raise UnsupportedOption(
            "The DP step was made for another model object than the one that is sampled; a model that is built again "
            "is another one, whatever its names. Make the step inside `with model:` of the model to be sampled."
        )
    left_over = [var.name for var in value_vars if var not in moved]
    steps = step if isinstance(step, Sequence) else [step]
    if left_over or sum(len(flatten_steps(one)) for one in steps) > len(found):
        raise UnsupportedOption(
            "Every free variable has to be updated by a DP step: a step that is not private would publish the "
            f"data through {', '.join(left_over) or 'the others'}. Leave out vars= and steps that are not private."
        )
    if len(moved) > len(value_vars):
        raise UnsupportedOption("A free variable is updated by two DP steps. Name each in the vars= of one of them.")
    return StepGroup(found)


def _refuse_unsupported_options(arguments: dict[str, Any], unknown: dict[str, Any]) -> None:
    unknown = {**unknown, **({"nuts_sampler_kwargs": 0} if arguments["nuts_sampler_kwargs"] else {})}
    if unknown:
        raise UnsupportedOption(f"pm.sample has no option {', '.join(sorted(unknown))} for DP steps.")
    if arguments["trace"] is not None:
        raise UnsupportedOption("trace= would store the model's data with the draws. Leave it out; save the result.")
    if not arguments["return_inferencedata"]:
        raise UnsupportedOption("return_inferencedata=False would return a trace that holds the model. Leave it out.")
    if arguments["nuts_sampler"] not in (None, "pymc"):
        raise UnsupportedOption(f"nuts_sampler={arguments['nuts_sampler']!r} cannot run a DP step. Leave it out.")
    if arguments["init"] != "auto":
        raise UnsupportedOption("init= is of NUTS: chains of a private run start where initvals= says. Leave it out.")
    if arguments["backend"] not in (None, "numba"):
        raise UnsupportedOption("DP steps run on PyTensor's numba backend. Leave out backend=.")
    extra = set(arguments["idata_kwargs"] or {}) - _ALLOWED_IDATA_OPTIONS
    if extra:
        raise UnsupportedOption(
            f"idata_kwargs {sorted(extra)} may add values computed from the data. Allowed: include_transformed."
        )


def _refuse_bad_options(arguments: dict[str, Any], model: Model, plan: Plan) -> None:
    """Refuse what `pm.sample` would refuse only after the charge."""
    if arguments["random_seed"] == -1:
        raise InvalidArgument("random_seed must not be -1. Leave it out for no seed.")
    if arguments["progressbar"] not in _PROGRESS_BARS:
        raise InvalidArgument(f"progressbar must be one of {_PROGRESS_BARS}.")
    blas_cores = arguments["blas_cores"]
    if not (blas_cores is None or blas_cores == "auto" or isinstance(blas_cores, int)):
        raise InvalidArgument("blas_cores must be a whole number, 'auto' or None.")
    _validate.whole("cores", 1 if arguments["cores"] is None else arguments["cores"], at_least=1)
    refuse_wrong_starts(model, arguments["initvals"], plan.chains, plan.relation)


def _warn_about_infinite_epsilon() -> None:
    warnings.warn(
        "NOT PRIVATE: the budget's epsilon is infinite, so no noise is added but what the step's settings ask for, and "
        "the result shows the table as it is. This is for debugging on public or simulated data; publish nothing.",
        UserWarning,
        skip_file_prefixes=(_PACKAGE,),
    )


def _warn_about_delta(budget: PrivacyBudget, rows: UnitLikelihood | PartitionedUnits) -> None:
    if budget.relation == "substitute" and budget.delta >= 1.0 / rows.n_units:
        warnings.warn(
            f"delta={budget.delta:g} is not below 1/n = {1.0 / rows.n_units:.2g}: publishing one person's whole row "
            "would satisfy it. Choose delta well below 1/n.",
            UserWarning,
            skip_file_prefixes=(_PACKAGE,),
        )
