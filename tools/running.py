"""One recorded run: everything is the package's own, but for what is slow.

PyMC's sampling loop is replaced by a plain loop, and compiled functions are used again for another table if and only
if the graphs are equal, constants included. Planning, charging, curators, row engine, samplers and publication are
those of the package.
"""

import contextlib
import functools
import inspect
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import pymc as pm
import xarray as xr
from neighbours import Table
from pymc.sampling.parallel import Draw
from pytensor.graph.basic import clone, equal_computations
from recording import Diverged, Recorder, Trace, bits_of_tree
from xarray import DataTree

import pymc_dp as dp
from pymc_dp import compiling
from pymc_dp.model import view
from pymc_dp.model.parameters import ParameterVector
from pymc_dp.release import MeteredCurator, Release, curator as curator_module
from pymc_dp.rows import likelihood
from pymc_dp.run import sampling
from pymc_dp.steps.prelude import free_hmc
from pymc_dp.surveys import asking

#: Stands for NaN while a model is built.
_NOT_A_NUMBER = np.float64(1.2345678901234567e-77)
#: The pilot of free chains is a function of releases and public randomness, whatever its length.
SHORT_PILOT = {
    "_TRAJECTORIES_OF_A_ROUND": 10,
    "_MEASURED_TRAJECTORIES": 40,
    "_MOST_ROUNDS": 4,
    "_MOST_LEAPFROGS": 8,
    "_MOST_GRADIENTS_APART": 40,
}
#: How many graphs are remembered with what was compiled from them.
_REMEMBERED = 24


class Compiled:
    """Compiled functions, used again for graphs that are equal, constants included."""

    def __init__(self) -> None:
        self._known: list[tuple[Any, list[Any], list[Any], Any]] = []
        self.reused = self.made = 0

    def of(self, facts: Any, inputs: Sequence[Any], outputs: Sequence[Any], make: Callable[[], Any]) -> Any:
        """Return what was made for an equal graph, or make it."""
        inputs, outputs = list(inputs), list(outputs)
        facts = facts, compiling.MODE  # interpreted functions, of other tests, have other bits than those of workers
        for known_facts, known_inputs, known_outputs, found in self._known:
            if (
                known_facts == facts
                and [each.type for each in known_inputs] == [each.type for each in inputs]
                and equal_computations(known_outputs, outputs, known_inputs, inputs)
            ):
                self.reused += 1
                return found
        # Some compilations rewrite graphs in place: remember the graph as it was.
        copied = clone(inputs, outputs, copy_inputs=False, copy_orphans=False)[1]
        found = make()
        self.made += 1
        self._known = [*self._known[-_REMEMBERED:], (facts, inputs, copied, found)]
        return found


_COMPILED = Compiled()


@dataclass(frozen=True)
class Survey:
    """What is asked once, in the place of a sampler.

    Attributes
    ----------
    ask : callable
        Called in the model's context with the table, the `pymc_dp.Table` of it or None, and the budget and unit by
        name; returns the published tree.
    """

    ask: Callable[[Table, dp.Table | None, dict[str, Any]], DataTree]


def run(
    build: Callable[[Table], pm.Model],
    table: Table,
    make_step: Callable[..., Any],
    recorder: Recorder,
    *,
    relation: str,
    unit_index: str | None,
    epsilon: float,
    delta: float,
    draws: int,
    tune: int,
    chains: int,
    start_scale: float,
    seed: int,
    real_loop: bool,
    patches: Sequence[Any],
    beside: Callable[[Table], dp.Table] | None,
) -> Trace:
    """Make one run and record it. With `beside`, the table is one beside the model, whose own rows are invented."""
    trace = recorder.trace
    with contextlib.ExitStack() as stack:
        for make_patch in patches:
            stack.enter_context(make_patch())
        for patch in _patches(recorder):
            stack.enter_context(patch)
        if not real_loop:
            loop = _plain_loop(start_scale, seed)
            stack.enter_context(mock.patch.object(sampling, "_pymc_sample", loop))
        try:
            with build(_without_nan(table)):
                budget = dp.PrivacyBudget(epsilon, delta, relation)
                shared = {} if unit_index is None or beside is not None else {"unit_index": unit_index}
                data = None if beside is None else beside(table)
                if isinstance(make_step, Survey):
                    trace.tree = make_step.ask(_without_nan(table), data, {"budget": budget, **shared})
                    trace.published = bits_of_tree(trace.tree)
                    return trace
                step = make_step(budget=budget, **shared)
                trace.tree = dp.sample(
                    draws=draws,
                    tune=tune,
                    chains=chains,
                    cores=1,
                    step=step,
                    data=data,
                    random_seed=seed,
                    discard_tuned_samples=False,
                    progressbar=False,
                    quiet=True,
                    compute_convergence_checks=False,
                )
            trace.published = bits_of_tree(trace.tree)
        except (Exception, Diverged) as error:
            trace.error = recorder.diverged or f"{type(error).__name__}: {error}"
    return trace


def _patches(recorder: Recorder) -> Iterator[Any]:
    """Yield what records a run, and what makes it quick."""
    for module in (sampling, asking):
        yield mock.patch.object(module, "SecureNoise", return_value=recorder)
    for name, method in vars(MeteredCurator).items():
        if inspect.isfunction(method) and not name.startswith("_"):
            yield mock.patch.object(MeteredCurator, name, _recorded(recorder, method))
    yield mock.patch.object(curator_module, "drawn", functools.partial(recorder.batch, curator_module.drawn))
    for name, recorded in (("acceptance", recorder.probability), ("happens", recorder.happens)):
        yield mock.patch.object(curator_module, name, functools.partial(recorded, getattr(curator_module, name)))
    yield mock.patch.object(dp.PrivacyBudget, "charge", _noticed_from_here(recorder, dp.PrivacyBudget.charge))
    yield _noticing(recorder)
    yield mock.patch.object(view, "refuse_missing_values", return_value=None)
    for name, length in SHORT_PILOT.items():
        yield mock.patch.object(free_hmc, name, length)
    yield mock.patch.object(likelihood.UnitLikelihood, "__init__", _with_nan(likelihood.UnitLikelihood.__init__))
    yield from _remembering()


def _recorded(recorder: Recorder, method: Callable[..., Release]) -> Callable[..., Release]:
    @functools.wraps(method)
    def asked(curator: MeteredCurator, *args: Any, **kwargs: Any) -> Release:
        return recorder.request(curator, method, args, kwargs)

    return asked


class _Records(logging.Handler):
    def __init__(self, noticed: list[Any]) -> None:
        super().__init__()
        self.noticed = noticed

    def emit(self, record: logging.LogRecord) -> None:
        self.noticed.append((record.name, record.levelname, record.getMessage()))


def _noticed_from_here(recorder: Recorder, charge: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(charge)
    def charged(budget: dp.PrivacyBudget, plan: Any, *args: Any, **kwargs: Any) -> Any:
        recorder.trace.noticed.clear()
        found = charge(budget, plan, *args, **kwargs)
        recorder.trace.plan = plan
        return found

    return charged


@contextlib.contextmanager
def _noticing(recorder: Recorder) -> Iterator[None]:
    """Collect warnings and log records; those before the charge are forgotten by it."""
    noticed = recorder.trace.noticed

    def shown(message: Any, category: Any, *args: Any, **kwargs: Any) -> None:
        noticed.append((category.__name__, str(message)))

    handler = _Records(noticed)
    logging.getLogger().addHandler(handler)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = shown
        try:
            yield
        finally:
            logging.getLogger().removeHandler(handler)


def _without_nan(table: Table) -> Table:
    return {
        name: np.where(np.isnan(values), _NOT_A_NUMBER, values) if values.dtype.kind == "f" else values
        for name, values in table.items()
    }


def _with_nan(real: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(real)
    def made(rows: Any, *args: Any, **kwargs: Any) -> None:
        real(rows, *args, **kwargs)
        tables = [
            np.where(data == _NOT_A_NUMBER, np.nan, data) if data.dtype.kind == "f" else data
            for data in rows._table.rows
        ]
        rows._table = rows._table.with_rows(tables, rows._table.starts)

    return made


def _remembering() -> Iterator[Any]:
    """Yield patches by which equal graphs are compiled once."""
    real_graphs, real_engine = likelihood.RowGraphs, likelihood.RowEngine
    real_check, real_prior = likelihood.check_factorisation, view.Prior
    checked: list[Any] = []

    def graphs(of: view.ModelView) -> Any:
        row_split, shapes = of.row_split, [of.parameters.shapes[name] for name in of.parameters.names]
        shapes_of_rows = [leaf.row_shape() for leaf in row_split.leaves]
        rows = [leaf.row for leaf in row_split.leaves]
        response = [] if row_split.response is None else row_split.response.graphs
        outputs = [row_split.row_log_likelihood, *response]
        facts = ("graphs", shapes_of_rows, shapes, len(outputs))
        return _COMPILED.of(facts, [*rows, *of.value_variables], outputs, lambda: real_graphs(of))

    def engine(of: Any) -> Any:
        if "engine_of_this_test" not in of.__dict__:
            checked.append(None)
            of.engine_of_this_test = real_engine(of)
        return of.engine_of_this_test

    def check(*arguments: Any) -> None:
        if checked:  # new functions are checked, those of an equal graph have been
            real_check(*arguments)
            checked.clear()

    def prior(model: pm.Model, parameters: ParameterVector) -> Any:
        outputs = [model.logp(vars=[*model.free_RVs, *model.potentials])]
        return _COMPILED.of("prior", model.value_vars, outputs, lambda: real_prior(model, parameters))

    yield mock.patch.object(likelihood, "RowGraphs", graphs)
    yield mock.patch.object(likelihood, "RowEngine", engine)
    yield mock.patch.object(likelihood, "check_factorisation", check)
    yield mock.patch.object(view, "Prior", prior)


def _plain_loop(start_scale: float, seed: int) -> Callable[..., DataTree]:
    """Return what stands for PyMC's loop: the same calls of the step, and a tree of what it returned."""

    @functools.wraps(sampling._pymc_sample)
    def loop(
        draws: int, *, tune: int, chains: int, step: Any, model: pm.Model, callback: Any = None, **rest: Any
    ) -> DataTree:
        parameters = ParameterVector(model)
        kept = [_PlainTrace([], []) for _ in range(chains)]
        for chain, rng in enumerate(np.random.default_rng(seed).spawn(chains)):
            start = np.random.default_rng([seed, chain]).normal(scale=start_scale, size=parameters.size)
            point = parameters.to_point(start)
            step.setup_chain(rng, tune, draws)
            step.tune = bool(tune)
            for iteration in range(tune + draws):
                if iteration == tune:
                    step.stop_tuning()
                try:
                    point, found = step.step(point)
                except BaseException:  # nothing is kept here of a run that ends early
                    for trace in kept:
                        trace.points.clear()
                    raise
                kept[chain].points.append(point)
                kept[chain].stats.append(found)
                if callback is not None:
                    last = iteration == tune + draws - 1
                    callback(trace=kept[chain], draw=Draw(chain, last, iteration, iteration < tune, found, point))
        return _tree([trace.points for trace in kept], [trace.stats for trace in kept], tune)

    return loop


@dataclass
class _PlainTrace:
    """What a callback may ask of PyMC's trace of one chain."""

    points: list[dict[str, np.ndarray]]
    stats: list[list[dict[str, Any]]]

    def __len__(self) -> int:
        return len(self.points)

    def get_sampler_stats(self, name: str, place: int) -> list[Any]:
        return [of_steps[place][name] for of_steps in self.stats]


def _tree(points: Any, stats: Any, tune: int) -> DataTree:
    """Return the groups that PyMC returns, on the unconstrained scale."""
    groups = {}
    for prefix, phase in (("", slice(tune, None)), ("warmup_", slice(0, tune))):
        if not points[0][phase]:
            continue
        coords = {"chain": np.arange(len(points)), "draw": np.arange(len(points[0][phase]))}
        draws = {name: np.array([[point[name] for point in chain[phase]] for chain in points]) for name in points[0][0]}
        groups[f"{prefix}posterior"] = _dataset(draws, coords)
        names = dict.fromkeys(name for one in stats[0][0] for name in one if name != "warning")  # as PyMC leaves it out
        found = {name: np.array([_stat(name, chain[phase]) for chain in stats]) for name in names}
        groups[f"{prefix}sample_stats"] = _dataset(found, coords)
    return DataTree.from_dict(groups)


def _stat(name: str, iterations: Sequence[Sequence[Mapping[str, Any]]]) -> np.ndarray:
    """Return a statistic of every iteration; of several steps that have it, along a further axis."""
    values = [[one[name] for one in steps if name in one] for steps in iterations]
    kind = object if name in ("releases", "standardised") else None
    array = np.empty((len(values), len(values[0])), dtype=kind) if kind else np.array(values)
    if kind:
        for i, row in enumerate(values):
            for j, value in enumerate(row):
                array[i, j] = value
    return array[:, 0] if array.shape[1] == 1 else array


def _dataset(arrays: Mapping[str, np.ndarray], coords: Mapping[str, np.ndarray]) -> xr.Dataset:
    variables = {
        name: (("chain", "draw", *[f"{name}_dim_{k}" for k in range(values.ndim - 2)]), values)
        for name, values in arrays.items()
    }
    return xr.Dataset(variables, coords=coords)
