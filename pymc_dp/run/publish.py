"""The published result: a tree of draws, statistics, releases and metadata, assembled from an allow-list.

Nothing of PyMC's tree is kept unless it is named here: no data, no coordinate of the rows, no timing.
"""

import json
import math
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
import xarray as xr
from xarray import DataTree

from pymc_dp.budget.plan import Plan, record_of_releases
from pymc_dp.budget.privacy_budget import PrivacyBudget
from pymc_dp.kinds import CLIP_COUNT, NUMBERS, ROLES, clip_fraction_name, labelled, noise_std_of
from pymc_dp.model.posterior import with_figures
from pymc_dp.model.protected import PublishableNames
from pymc_dp.release.interface import Release
from pymc_dp.run.finished import FinishedDraws
from pymc_dp.steps.base import StepGroup, window_ends

#: Attributes of PyMC's groups that are kept.
_KEPT_ATTRIBUTES = ("created_at", "inference_library", "inference_library_version", "tuning_steps")
#: Statistics for the progress bar only, and the raw releases, which get a group of their own.
_INTERNAL_STATISTICS = ("epsilon_charged", "mean_accepted", "releases", "standardised")
#: Chain and iteration of releases that were made once, before the chains started.
_BEFORE_THE_CHAINS = -1

#: Index of the step, chain, iteration (tuning first), and the release.
_Placed = tuple[int, int, int, Release]


def publish(
    tree: DataTree,
    finished: FinishedDraws,
    group: StepGroup,
    *,
    plan: Plan,
    facts: Mapping[str, Any],
    names: PublishableNames,
    keep_warmup: bool,
) -> DataTree:
    """Return the published tree.

    `tree` is PyMC's tree of the draws, tuning included; for a run that ended early, of a rectangle of chains and
    draws. `finished` has all draws and releases of the chains, `group` the releases before them. `facts` are
    the attributes of the ``privacy`` group: those of `metadata`, from before the run, and those of the run's end. With
    `keep_warmup`, tuning draws are kept in groups of their own, as in PyMC.
    """
    once = [
        (place, _BEFORE_THE_CHAINS, _BEFORE_THE_CHAINS, release)
        for place, step in enumerate(group.steps)
        for release in step.released_once.made
    ]
    in_chains = [
        (place, chain, iteration, release)
        for chain, iteration, place, releases in finished.releases(len(plan.steps))
        for release in releases.made
    ]
    fractions = _clip_fractions(in_chains, plan, facts.get("n_units"))
    likelihood = group.steps[0].likelihood
    groups: dict[str, xr.Dataset] = {}
    phases = {"": slice(plan.tune, None)} | ({"warmup_": slice(0, plan.tune)} if keep_warmup else {})
    for prefix, phase in phases.items():
        if f"{prefix}posterior" not in tree:
            continue
        groups[f"{prefix}posterior"] = _cleaned(tree[f"{prefix}posterior"].to_dataset(), names.omitted)
        of_pymc = tree[f"{prefix}sample_stats"].to_dataset()
        stats = _cleaned(of_pymc, _INTERNAL_STATISTICS)
        for name, values in fractions.items():
            stats[name] = (("chain", "draw"), values[stats["chain"].values, phase][:, : stats.sizes["draw"]])
        if "standardised" in of_pymc:
            points = [[each.point for each in np.ravel(chain)] for chain in of_pymc["standardised"].values]
            stats["standardised"] = (("chain", "draw", "direction"), np.array(points))
        if likelihood is not None and "accepted" not in stats:  # draws of NUTS
            stats = with_figures(stats, likelihood)
        groups[f"{prefix}sample_stats"] = stats
    if not facts["complete"] and "posterior" in groups:
        groups["partial_posterior"] = finished.concatenated(names.kept, plan.tune, groups["posterior"])
    if all(step.keep_releases for step in group.steps):
        groups["releases"] = _releases_group(once + in_chains, group, plan)
    published = names.kept if facts["complete"] else []
    if "posterior" in groups:
        published = [str(name) for name in groups["posterior"].data_vars]
    if likelihood is not None:
        groups["private_likelihood"] = likelihood
    groups["privacy"] = xr.Dataset(attrs={**facts, "variables": json.dumps(published)})
    return DataTree.from_dict(groups)


def _cleaned(dataset: xr.Dataset, dropped: Sequence[str]) -> xr.Dataset:
    cleaned = dataset.drop_vars([name for name in dropped if name in dataset])
    internal = tuple(f"{name}_dim_" for name in _INTERNAL_STATISTICS)
    cleaned = cleaned.drop_vars([name for name in cleaned.coords if str(name).startswith(internal)])
    cleaned.attrs = {name: value for name, value in dataset.attrs.items() if name in _KEPT_ATTRIBUTES}
    return cleaned


def _clip_fractions(releases: Sequence[_Placed], plan: Plan, n_units: int | None) -> dict[str, np.ndarray]:
    """Return released clip fractions and their noise by iteration, each constant over the iterations of its count."""
    ends = np.array(window_ends(plan.tune, plan.draws))
    fractions: dict[str, np.ndarray] = {}
    for place, chain, iteration, release in releases:
        if release.kind != CLIP_COUNT:
            continue
        step = plan.steps[place]
        n = n_units if n_units is not None else max(1.0, float(release.value[-1]))
        begin = max([0, *ends[ends <= iteration]])
        counted = dict.fromkeys(each.kind for each in step.in_chains if each.kind != CLIP_COUNT)
        for kind, count in zip(counted, release.value, strict=False):
            fraction = clip_fraction_name(kind, step.label)
            for name, found in ((fraction, count / n), (noise_std_of(fraction), release.noise_std / n)):
                empty = np.full((plan.chains, plan.tune + plan.draws), np.nan)
                fractions.setdefault(name, empty)[chain, begin : iteration + 1] = found
    return fractions


def _releases_group(all_releases: Sequence[_Placed], group: StepGroup, plan: Plan) -> xr.Dataset:
    """Return all releases as arrays, with a dimension for each kind of each step."""
    variables: dict[str, Any] = {}
    coords: dict[str, Any] = {"parameter": list(group.steps[0].parameters.labels)}
    for place, (step, moving) in enumerate(zip(plan.steps, group.steps, strict=True)):
        own_parameters = labelled("parameter", step.label)
        coords[own_parameters] = list(moving.labels)
        by_kind: dict[str, list[_Placed]] = {releases.kind: [] for releases in step.releases}
        of_step = [each for each in all_releases if each[0] == place]
        for order, (_, chain, iteration, release) in enumerate(of_step):
            by_kind.setdefault(release.kind, []).append((order, chain, iteration, release))  # counts may be unplanned
        for kind, entries in by_kind.items():
            if not entries:
                continue
            name, releases = step.published(kind), [release for *_, release in entries]
            along = f"{name}_release"
            for column, heading in enumerate(("order", "chain", "iteration")):
                coords[f"{name}_{heading}"] = (along, [entry[column] for entry in entries])
            values = np.stack([release.value for release in releases])
            across = own_parameters if values.shape[1] == len(moving.labels) else f"{name}_entry"
            is_number = kind in NUMBERS
            variables[name] = ((along,), values[:, 0]) if is_number else ((along, across), values)
            variables[noise_std_of(name)] = (along, [release.noise_std for release in releases])
            for where, position in enumerate(("position", "position_new")):
                if len(releases[0].where) > where:
                    positions = np.stack([release.where[where] for release in releases])
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

    They are read between the charge and the run, so that no change of a step during the run can affect them.
    `n_units` is None where the number is protected.
    """
    steps = list(zip(plan.steps, group.steps, strict=True))
    exact = any(step.clip_diagnostics == "exact" for step in group.steps)
    described = [
        {
            "sampler": planned.sampler,
            "label": planned.label,
            "kinds": [
                {"kind": kind, "role": ROLES.get(kind, "other"), "once": once}
                for kind, once in {each.kind: each in planned.once for each in planned.releases}.items()
            ],
            "facts": step.facts,
        }
        for planned, step in steps
    ]
    bounds = {planned.published(kind): bound for planned, step in steps for kind, bound in step.clip_bounds.items()}
    # Truth values become integers: netCDF has no truth values, and NumPy's do not survive every store.
    facts = {
        labelled(name, planned.label): int(fact) if isinstance(fact, bool) else fact
        for planned, step in steps
        for name, fact in step.facts.items()
    }
    parameters = group.steps[0].parameters
    # A sampler's facts cannot replace an attribute of the guarantee.
    return {
        **facts,
        **guarantee_of(plan, group.budget, n_units, seeded=group.random_seed is not None, exact_counts=exact),
        "steps": json.dumps(described),
        "clip_bounds": json.dumps(bounds),
        "parameters": json.dumps(parameters.sizes(names.kept)),
        "coords": json.dumps({name: of for name, of in parameters.coords.items() if of and name in names.kept}),
        "omitted_because_computed_from_rows": json.dumps(names.omitted),
    }


def guarantee_of(
    plan: Plan, budget: PrivacyBudget, n_units: int | None, *, seeded: bool, exact_counts: bool = False
) -> dict[str, Any]:
    """Return the guarantee of a charged plan and its mechanisms, as attributes of the ``privacy`` group.

    `n_units` is None where the number is protected. With seeded noise, or exact counts of clipped units, nothing is
    private.
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
    releases = []
    for step in plan.steps:
        for each in step.releases:
            record = record_of_releases(each) | {"kind": step.published(each.kind)}
            if each.adds_in_rho and math.isfinite(plan.epsilon):
                record["rho"] = each.rho
                if plan.gaussian:
                    record["share"] = each.rho / plan.rho
            releases.append(record)
    return {
        "private": int(not problems),
        "not_private_because": "; ".join(problems),
        "epsilon": plan.epsilon,
        "delta": plan.delta,
        "relation": plan.relation,
        "unit": plan.unit,
        "rho": plan.rho if budget.private else math.inf,
        "accountant": plan.accountant,
        "releases": json.dumps(releases),
        "noise": noise,
        "sampler": plan.sampler,
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
