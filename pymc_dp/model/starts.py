"""Starting points of chains: computed and checked before anything is charged. They are public."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor
from pymc.initial_point import make_initial_point_fns_per_chain
from pymc.pytensorf import compile as pymc_compile
from pymc.util import get_random_generator
from pytensor.graph.basic import Variable

from pymc_dp.compiling import INTERPRETED
from pymc_dp.exceptions import InvalidArgument
from pymc_dp.model.parameters import ParameterVector
from pymc_dp.model.prior import Prior

#: Number of draws of the prior that are tried: at least half of them miss an order that a transform requires.
_TRIED_DRAWS = 30
Point = Mapping[str, np.ndarray]
#: The type of ``initvals`` of `pm.sample`.
InitialValues = dict[Any, Any] | Sequence[dict[Any, Any] | None]


def initial_values(model: pm.Model) -> dict[Variable, str]:
    """Return the default starting values of chains: draws of the prior.

    Left out are variables that cannot be drawn, such as `pm.Flat`, and those whose draws a transform cannot represent,
    such as `ordered`. They start at their own ``initval``, or at PyMC's default for their distribution.
    """
    everything = dict.fromkeys(model.free_RVs, "prior")
    if _can_be_drawn(model, everything):
        return everything
    return {rv: "prior" for rv in model.free_RVs if _can_be_drawn(model, {rv: "prior"})}


def _can_be_drawn(model: pm.Model, strategies: dict[Variable, str]) -> bool:
    try:
        draw = _functions(model, strategies, 1)[0]
        with np.errstate(all="ignore"):
            points = [draw(seed) for seed in range(_TRIED_DRAWS)]
    except NotImplementedError:
        return False
    except Exception:  # another failure, which `starting_points` reports
        return True
    return all(np.isfinite(value).all() for point in points for value in point.values())


def starting_points(
    model: pm.Model, parameters: ParameterVector, initvals: InitialValues, random_seed: Any, chains: int, prior: Prior
) -> list[Point]:
    """Return the points at which `pm.sample` starts chains for the same arguments, on the unconstrained scale.

    The seed must not be None: the points would differ.
    """
    try:
        seeds = [generator.integers(2**30) for generator in get_random_generator(random_seed).spawn(chains)]
    except (TypeError, ValueError) as error:
        raise InvalidArgument("random_seed must be what numpy.random.default_rng takes.") from error
    try:
        functions = _functions(model, initvals, chains)
        points = [function(seed) for function, seed in zip(functions, seeds, strict=True)]
    except Exception as error:  # a function of the user's may raise anything
        raise InvalidArgument(
            f"The initial values cannot be computed ({type(error).__name__}). See that initvals fit the model and can "
            "be drawn from where they are 'prior', or pass numbers."
        ) from error
    for chain, point in enumerate(points):
        misfits = [name for name, shape in parameters.shapes.items() if np.shape(point[name]) != shape]
        if misfits:
            raise InvalidArgument(f"initvals do not have the shapes of {_quoted(misfits)} in the model.")
        misfits = [
            variable
            for name, variable in zip(parameters.names, parameters.variables, strict=True)
            if not np.isfinite(point[name]).all()
        ]
        where = f"The starting point of chain {chain}"
        if misfits:
            raise InvalidArgument(
                f"{where} is not finite in {_quoted(misfits)}, on the unconstrained scale. Pass initvals= inside the "
                "variables' support."
            )
        theta = parameters.to_theta(point)
        if not np.isfinite(prior.log_density(theta)):
            raise InvalidArgument(
                f"{where} is not possible under the prior: its density is zero or undefined in the terms of "
                f"{_quoted(_impossible_terms(model, point))}. Pass initvals= where the priors and potentials are "
                "finite."
            )
        if not np.isfinite(prior.gradient(theta)).all():
            raise InvalidArgument(
                f"{where} has a prior density without a gradient. Pass initvals= where priors and potentials are "
                "smooth."
            )
    return points


def _functions(model: pm.Model, initvals: Any, chains: int) -> list[Any]:
    with pytensor.config.change_flags(mode=INTERPRETED):  # called once: compiling takes longer
        functions: list[Any] = make_initial_point_fns_per_chain(
            model=model, overrides=initvals, jitter_rvs=set(), chains=chains
        )
    return functions


def _impossible_terms(model: pm.Model, point: Point) -> list[str]:
    """Return the names of variables and potentials whose log-density is not finite at a point."""
    terms = [*model.free_RVs, *model.potentials]
    logps = model.logp(vars=terms, sum=False)
    values = pymc_compile(model.value_vars, logps, mode=INTERPRETED, on_unused_input="ignore")(
        *[point[var.name] for var in model.value_vars]
    )
    return [term.name for term, value in zip(terms, values, strict=True) if not np.isfinite(value).all()]


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))


def refuse_wrong_starts(model: pm.Model, initvals: InitialValues | None, chains: int, relation: str) -> None:
    """Refuse ``initvals`` that `pm.sample` would refuse only after the charge."""
    if initvals is None:
        return
    if not isinstance(initvals, dict) and len(initvals) != chains:
        raise InvalidArgument(f"initvals has {len(initvals)} entries for {chains} chains. Pass one for each.")
    known = {rv.name for rv in model.free_RVs} | {var.name for var in model.value_vars}
    for values in _each(initvals):
        wrong = {str(getattr(name, "name", name)) for name in values} - known
        if wrong:
            raise InvalidArgument(
                f"initvals names {sorted(wrong)}, which are no free variables of the model: those are "
                f"{', '.join(rv.name for rv in model.free_RVs)}."
            )
    with pytensor.config.change_flags(mode=INTERPRETED):  # called once: compiling takes longer
        shapes = {name: tuple(map(int, shape)) for name, shape in model.eval_rv_shapes().items()}
    for key, value in itertools.chain.from_iterable(values.items() for values in _each(initvals)):
        name = str(getattr(key, "name", key))
        if value is None or isinstance(value, str | Variable):
            continue  # "prior" and the like, or an expression
        if np.shape(value) != shapes[name]:
            # A variable with an entry for each person has a shape that such budgets protect.
            expected = "another" if relation == "add-remove" else str(shapes[name])
            raise InvalidArgument(f"initvals[{name!r}] has shape {np.shape(value)}, but {name!r} has {expected}.")


def expressions_in(initvals: InitialValues | None) -> list[Variable]:
    """Return the starting values that are expressions."""
    return [value for values in _each(initvals) for value in values.values() if isinstance(value, Variable)]


def _each(initvals: InitialValues | None) -> list[Mapping[Any, Any]]:
    """Return the starting values of each chain that has any, or those of all."""
    return [values or {} for values in ([initvals] if isinstance(initvals, dict) else initvals or [])]
