"""What leaves: a tree of draws, statistics, releases and metadata, put together from an allow-list.

Nothing of PyMC's tree is kept unless it is named here: no data, no coordinate of the rows, no timing.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
import xarray as xr
from xarray import DataTree

from pymc_dp.accounting import Releases
from pymc_dp.budget.plan import Plan, StepPlan, record_of_releases
from pymc_dp.budget.privacy_budget import PrivacyBudget
from pymc_dp.kinds import CLIP_COUNT, clip_fraction_name, labelled, noise_std_of, release_kind
from pymc_dp.model.posterior import with_figures
from pymc_dp.model.protected import PublishableNames
from pymc_dp.release.interface import Release, ReleasesOfIteration
from pymc_dp.run.finished import FinishedDraws
from pymc_dp.steps.base import DPStep, StepGroup, window_ends

_KEPT_ATTRIBUTES = ("created_at", "inference_library", "inference_library_version", "tuning_steps")
#: Statistics that only the progress bar needs, and the raw releases, which get a group of their own.
_INTERNAL_STATISTICS = ("epsilon_charged", "mean_accepted", "releases", "standardised")
#: Where releases are kept that were made once, before any chain had started.
_BEFORE_THE_CHAINS = -1


def publish(
    tree: DataTree,
    once: Sequence[ReleasesOfIteration],
    finished: FinishedDraws,
    *,
    plan: Plan,
    facts: Mapping[str, Any],
    names: PublishableNames,
    parameters: Sequence[str],
    moved: Sequence[Sequence[str]],
    keep_releases: bool,
    keep_warmup: bool,
    likelihood: xr.Dataset | None,
) -> DataTree:
    """Return the tree that may leave.

    Parameters
    ----------
    tree : DataTree
        What PyMC made of the draws, tuning included. Of a run that ended early, it holds as many as make a rectangle.
    once : sequence of ReleasesOfIteration
        What each step released before the chains started.
    finished : FinishedDraws
        All that the chains have drawn and released, however many iterations each has made.
    plan : Plan
        What was paid for.
    facts : mapping
        The attributes of the ``privacy`` group: those that `metadata` gave before the run, and how it ended.
    names : PublishableNames
        The variables that may leave.
    parameters : sequence of str
        Names of all parameters.
    moved : sequence of sequence of str
        Names of the parameters that each step moves.
    keep_releases : bool
        Keep every release in a group of its own.
    keep_warmup : bool
        Keep tuning draws in groups of their own, as PyMC does.
    likelihood : Dataset or None
        What the releases say of the likelihood, if they say it without any draw.
    """
    made = [
        _Made(place, chain, iteration, release)
        for chain, iteration, place, releases in finished.releases(len(plan.steps))
        for release in releases.made
    ]
    fractions = _clip_fractions(made, plan, facts.get("n_units"))
    groups: dict[str, xr.Dataset] = {}
    phases = [("", slice(plan.tune, None))] + ([("warmup_", slice(0, plan.tune))] if keep_warmup else [])
    for prefix, phase in phases:
        if f"{prefix}posterior" not in tree:
            continue
        groups[f"{prefix}posterior"] = _cleaned(tree[f"{prefix}posterior"].to_dataset(), names.omitted)
        stats = _cleaned(tree[f"{prefix}sample_stats"].to_dataset(), _INTERNAL_STATISTICS)
        for name, values in fractions.items():
            stats[name] = (("chain", "draw"), values[stats["chain"].values, phase][:, : stats.sizes["draw"]])
        if "standardised" in tree[f"{prefix}sample_stats"]:
            stats["standardised"] = (("chain", "draw", "direction"), _standardised(tree[f"{prefix}sample_stats"]))
        if likelihood is not None and "accepted" not in stats:  # of NUTS
            stats = with_figures(stats, likelihood)
        groups[f"{prefix}sample_stats"] = stats
    if not facts["complete"] and "posterior" in groups:
        groups["partial_posterior"] = finished.one_after_the_other(names.kept, plan.tune, groups["posterior"])
    if keep_releases:
        before = [
            _Made(place, _BEFORE_THE_CHAINS, _BEFORE_THE_CHAINS, release)
            for place, releases in enumerate(once)
            for release in releases.made
        ]
        groups["releases"] = _releases_group(before + made, parameters, moved, plan)
    published = names.kept if facts["complete"] else []
    if "posterior" in groups:
        published = [str(name) for name in groups["posterior"].data_vars]
    if likelihood is not None:
        groups["private_likelihood"] = likelihood
    groups["privacy"] = xr.Dataset(attrs={**facts, "variables": json.dumps(published)})
    return DataTree.from_dict(groups)


def _standardised(stats: Any) -> np.ndarray:
    """Return every draw's standardised point, shape (chains, draws, parameters)."""
    return np.array([[each.point for each in np.ravel(chain)] for chain in stats["standardised"].values])


def _cleaned(dataset: xr.Dataset, dropped: Sequence[str]) -> xr.Dataset:
    cleaned = dataset.drop_vars([name for name in dropped if name in dataset])
    internal = tuple(f"{name}_dim_" for name in _INTERNAL_STATISTICS)
    cleaned = cleaned.drop_vars([name for name in cleaned.coords if str(name).startswith(internal)])
    cleaned.attrs = {name: value for name, value in dataset.attrs.items() if name in _KEPT_ATTRIBUTES}
    return cleaned


@dataclass(frozen=True)
class _Made:
    """A release, and which step of the run made it in which iteration of which chain (tuning first)."""

    step: int
    chain: int
    iteration: int
    release: Release


def _clip_fractions(made: Sequence[_Made], plan: Plan, n_units: int | None) -> dict[str, np.ndarray]:
    """Return released clip fractions and their noise for every iteration: constant within the window of a count."""
    ends = np.array(window_ends(plan.tune, plan.draws))
    fractions: dict[str, np.ndarray] = {}
    for each in made:
        if each.release.kind != CLIP_COUNT.name:
            continue
        step, value = plan.steps[each.step], each.release.value
        n = n_units if n_units is not None else max(1.0, float(value[-1]))
        begin = max([0, *ends[ends <= each.iteration]])
        for kind, count in zip(_counted(step), value, strict=False):
            fraction = clip_fraction_name(kind, step.label)
            for name, found in ((fraction, count / n), (noise_std_of(fraction), each.release.noise_std / n)):
                empty = np.full((plan.chains, plan.tune + plan.draws), np.nan)
                by_iteration = fractions.setdefault(name, empty)
                by_iteration[each.chain, begin : each.iteration + 1] = found
    return fractions


def _counted(step: StepPlan) -> list[str]:
    """Return the kinds of releases that a step's counts of clipped units are of, in the order of the counts."""
    return [kind for kind in step.allowance if kind != CLIP_COUNT.name]


def _releases_group(
    made: Sequence[_Made], parameters: Sequence[str], moved: Sequence[Sequence[str]], plan: Plan
) -> xr.Dataset:
    """Return all releases as arrays, one dimension for each kind of each step."""
    variables: dict[str, Any] = {}
    coords: dict[str, Any] = {"parameter": list(parameters)}
    for place, (step, own) in enumerate(zip(plan.steps, moved, strict=True)):
        own_parameters = labelled("parameter", step.label)
        coords[own_parameters] = list(own)
        by_kind: dict[str, list[tuple[int, _Made]]] = {releases.kind: [] for releases in step.releases}
        for number, each in enumerate(each for each in made if each.step == place):
            by_kind.setdefault(each.release.kind, []).append((number, each))  # counts may ride along unplanned
        for kind, numbered in by_kind.items():
            if not numbered:
                continue
            entries = [each for _, each in numbered]
            name = step.published(kind)
            along = f"{name}_release"
            coords[f"{name}_order"] = (along, [number for number, _ in numbered])
            coords[f"{name}_chain"] = (along, [each.chain for each in entries])
            coords[f"{name}_iteration"] = (along, [each.iteration for each in entries])
            values = np.stack([each.release.value for each in entries])
            across = own_parameters if values.shape[1] == len(own) else f"{name}_entry"
            is_number = release_kind(kind).is_number
            variables[name] = ((along,), values[:, 0]) if is_number else ((along, across), values)
            variables[noise_std_of(name)] = (along, [each.release.noise_std for each in entries])
            for where, position in enumerate(("position", "position_new")):
                if len(entries[0].release.where) > where:
                    positions = np.stack([each.release.where[where] for each in entries])
                    variables[f"{name}_{position}"] = ((along, "parameter"), positions)
    attributes = {
        "description": (
            "Noisy releases, of which all draws are functions. Positions are on the unconstrained scale; "
            "iterations count tuning first; chain -1 is what was released once before the chains; order counts all "
            "releases of a step. Any use of these values is free of further privacy cost."
        ),
        "tuning_steps": plan.tune,
    }
    return xr.Dataset(variables, coords=coords, attrs=attributes)


def metadata(plan: Plan, group: StepGroup, names: PublishableNames, n_units: int | None) -> dict[str, Any]:
    """Return the attributes of the ``privacy`` group: plain numbers and strings, structures as JSON.

    Asked for between the charge and the run, so that nothing done to the step during the run can change it.

    Parameters
    ----------
    plan, group
        What was paid for, by which steps.
    names : PublishableNames
        The variables that may leave.
    n_units : int or None
        The number of units, where it is public.

    Notes
    -----
    Which engine computed derivatives of rows is public: the choice depends on the model's graph and on shapes, never on
    values.
    """
    steps = list(zip(plan.steps, group.steps, strict=True))
    of_steps = {
        "steps": json.dumps([_step_as_json(planned, step) for planned, step in steps]),
        "clip_bounds": json.dumps(
            {planned.published(kind): bound for planned, step in steps for kind, bound in step.clip_bounds.items()}
        ),
        "parameters": json.dumps(group.steps[0].parameters.sizes(names.kept)),
        "omitted_because_computed_from_rows": json.dumps(names.omitted),
    }
    guarantee = guarantee_of(plan, group.budget, n_units, seeded=group.seeded, exact_counts=group.exact_counts)
    # What a sampler says of itself replaces nothing that is said of the guarantee.
    facts = {labelled(name, planned.label): fact for planned, step in steps for name, fact in step.facts.items()}
    return {**{name: _storable(fact) for name, fact in facts.items()}, **guarantee, **of_steps}


def guarantee_of(
    plan: Plan, budget: PrivacyBudget, n_units: int | None, *, seeded: bool, exact_counts: bool = False
) -> dict[str, Any]:
    """Return what is guaranteed of what a plan releases, and how, as attributes of the ``privacy`` group.

    Parameters
    ----------
    plan : Plan
        What was paid for.
    budget : PrivacyBudget
        That it was charged to.
    n_units : int or None
        The number of units, where it is public.
    seeded, exact_counts : bool
        Whether the noise is seeded, or exact counts of clipped units are returned: nothing is private then.
    """
    noise = "exact discrete Gaussian (OpenDP) from operating-system entropy, on a grid at least 2**35 times finer"
    adds_noise = [releases.adds_noise for releases in plan.releases]
    if not any(adds_noise):
        noise = "none is added: decisions are drawn with operating-system entropy"
    elif not all(adds_noise):
        noise += "; decisions are drawn with operating-system entropy, no noise is added to them"
    if seeded:
        noise = "INSECURE: seeded pseudo-random noise"
    problems = []
    if not budget.private:
        noise = "NONE but what settings ask for: the budget's epsilon is infinite"
        problems.append("the budget's epsilon is infinite: no noise was added but what settings ask for")
    if seeded:
        problems.append("privacy noise was seeded (insecure_seed)")
    if exact_counts:
        problems.append("exact clip counts were returned (clip_diagnostics='exact')")
    if not all(run.private for run in budget.history[:-1]):
        problems.append("an earlier run on this budget was not private")
    attributes: dict[str, Any] = {
        "private": not problems,
        "not_private_because": "; ".join(problems),
        "epsilon": plan.epsilon,
        "delta": plan.delta,
        "relation": plan.relation,
        "unit": plan.unit,
        "rho": plan.rho if budget.private else math.inf,
        "accountant": plan.accountant,
        "releases": json.dumps([_as_json(releases, step, plan) for step in plan.steps for releases in step.releases]),
        "noise": noise,
        "sampler": plan.sampler,
        "row_engine": plan.row_engine,
        "chains": plan.chains,
        "tune": plan.tune,
        "draws": plan.draws,
        "budget_epsilon": budget.epsilon,
        "budget_epsilon_spent": budget.epsilon_spent,
        "pymc_dp_version": version("pymc_dp"),
        "pymc_version": version("pymc"),
        "opendp_version": version("opendp"),
        **({} if n_units is None else {"n_units": n_units}),
    }
    return {name: _storable(value) for name, value in attributes.items()}


def _storable(value: Any) -> Any:
    """Return a fact as files can hold it: netCDF has no truth values, and NumPy's do not survive every store."""
    return int(value) if isinstance(value, bool) else value


def _step_as_json(planned: StepPlan, step: DPStep) -> dict[str, Any]:
    """Return what reports on a stored result have to know of a step."""
    kinds = [
        {"kind": kind, "role": release_kind(kind).role, "once": kind not in planned.allowance}
        for kind in dict.fromkeys(releases.kind for releases in planned.releases)
    ]
    return {"sampler": planned.sampler, "label": planned.label, "kinds": kinds, "facts": step.facts}


def _as_json(releases: Releases, step: StepPlan, plan: Plan) -> dict[str, Any]:
    described = record_of_releases(releases)
    described["kind"] = step.published(releases.kind)
    if releases.adds_in_rho and math.isfinite(plan.epsilon):
        described["rho"] = releases.rho
        if plan.gaussian:
            described["share"] = releases.rho / plan.rho
    return described
