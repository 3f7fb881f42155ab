"""Every sampler, as the contract suite runs it: on a regression with two unconstrained standard normal parameters."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
from contributed import DPCrankNicolson

import pymc_dp as dp

CANARY = 7.123456789012345
LABEL = "canary-person"


def table(n=200, offset=0.0):
    """Rows whose every value can be searched for."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=n) + offset
    y = 0.5 * x + generator.normal(size=n) + offset
    x[0], y[0] = CANARY, -CANARY
    return x, y


def regression(x, y):
    """Slope and intercept with standard normal priors, known variance: the posterior is normal."""
    with pm.Model(coords={"person": [f"{LABEL}-{i}" for i in range(len(y))]}) as model:
        intercept = pm.Normal("intercept")
        slope = pm.Normal("slope")
        pm.Deterministic("fitted", intercept + slope * x, dims="person")
        pm.Normal("y", intercept + slope * pm.Data("x", x, dims="person"), 1.0, observed=y, dims="person")
    return model


@dataclass(frozen=True)
class Sampler:
    """How to make a sampler's step, or steps, in a model's context."""

    name: str
    make: Callable[..., Any]
    relations: tuple[str, ...] = ("substitute", "add-remove")
    #: Draws batches: neighbours get other batches unless their random words are the same (tools/replay.py).
    on_batches: bool = False
    #: Learns its settings, and releases what an expansion misses.
    control_variates: bool = False

    def __call__(self, budget, **shared):
        return self.make(budget=budget, **shared)

    def __repr__(self):
        return self.name


def _hmc(**shared):
    return dp.DPHMC(clip_gradient=4.0, clip_log_ratio=4.0, step_size=0.05, n_leapfrog=2, **shared)


def _penalty(proposal):
    return lambda **shared: dp.DPPenalty(clip_log_ratio=4.0, proposal=proposal, proposal_scale=0.05, **shared)


def _mala(**shared):
    return dp.DPMALA(clip_gradient=4.0, clip_log_ratio=4.0, step_size=0.05, **shared)


def _mixed(**shared):
    return [
        dp.DPHMC(["slope"], clip_gradient=4.0, clip_log_ratio=4.0, step_size=0.05, n_leapfrog=2, **shared),
        dp.DPPenalty(["intercept"], clip_log_ratio=4.0, proposal_scale=0.05, **shared),
    ]


def _synthetic():
    generator = np.random.default_rng(1)
    x = generator.normal(size=300)
    return regression(x, 0.2 * x + generator.normal(size=300))


_SYNTHETIC = _synthetic()


def _surrogate(**shared):
    return dp.DPSurrogateHMC(newton_steps=2, **shared)


def _tested_surrogate(**shared):
    shares = dp.Shares(0.3, 0.4, 0.1, 0.2)
    return dp.DPSurrogateHMC(synthetic=_SYNTHETIC, shares=shares, newton_steps=2, **shared)


def _learned(step_class, *, control_variates=True, **settings):
    """Nothing is given but a budget, and `settings` where what would be chosen takes long."""
    if not control_variates:
        settings["prelude"] = dp.Prelude(control_variates=False)
    return lambda **shared: step_class(**settings, **shared)


def _contributed(**shared):
    return DPCrankNicolson(clip_log_ratio=4.0, beta=0.05, **shared)


def _sampled(budget):
    return {"batch_size": 50} if budget.relation == "substitute" else {"sampling_probability": 0.25}


def _sghmc(*, budget, **shared):
    relation = {} if budget is None else _sampled(budget)
    return dp.DPSGHMC(
        clip_gradient=4.0, step_size=0.02, friction=2000.0, n_leapfrog=2, budget=budget, **relation, **shared
    )


def _sgld(*, budget, **shared):
    shared |= {} if budget is None else _sampled(budget)
    return dp.DPSGLD(clip_gradient=4.0, step_size=(1e-4, 0.3), budget=budget, **shared)


def _sgnht(*, budget, **shared):
    shared |= {} if budget is None else _sampled(budget)
    return dp.DPSGNHT(clip_gradient=4.0, step_size=0.01, diffusion=None, n_steps=2, budget=budget, **shared)


def _minibatch_penalty(**shared):
    return dp.DPMinibatchPenalty(clip_log_ratio=4.0, proposal_scale=0.05, batch_size=50, tempering=0.5, **shared)


def _barker(**shared):
    return dp.DPBarker(proposal_scale=0.05, batch_size=150, tempering=0.1, **shared)


SAMPLERS = [
    Sampler("hmc", _hmc),
    Sampler("mala", _mala),
    Sampler("penalty-gaussian", _penalty("gaussian")),
    Sampler("penalty-one-component", _penalty("one-component")),
    Sampler("penalty-guided-walk", _penalty("guided-walk")),
    Sampler("penalty-one-component-guided-walk", _penalty("one-component-guided-walk")),
    Sampler("hmc-and-penalty", _mixed),
    Sampler("surrogate", _surrogate),
    Sampler("surrogate-tested", _tested_surrogate),
    Sampler("contributed", _contributed),
    Sampler("sghmc", _sghmc, ("add-remove", "substitute"), on_batches=True),
    Sampler("sgld", _sgld, ("add-remove", "substitute"), on_batches=True),
    Sampler("sgnht", _sgnht, ("add-remove", "substitute"), on_batches=True),
    Sampler("minibatch-penalty", _minibatch_penalty, ("substitute",), on_batches=True),
    Sampler("barker", _barker, ("substitute",), on_batches=True),
]

#: Steps that learn their settings before the chains start, and release what an expansion misses or the whole.
LEARNED = [
    Sampler(
        f"learned-{name}{suffix}",
        _learned(step_class, control_variates=control_variates, **settings),
        ("substitute",) if name in ("minibatch-penalty", "barker") else ("substitute", "add-remove"),
        on_batches=on_batches,
        control_variates=control_variates,
    )
    for suffix, control_variates in (("", True), ("-whole", False))
    for name, step_class, settings, on_batches in (
        ("hmc", dp.DPHMC, {}, False),
        ("mala", dp.DPMALA, {}, False),
        ("penalty", dp.DPPenalty, {}, False),
        ("contributed", DPCrankNicolson, {"beta": 0.5}, False),
        ("minibatch-penalty", dp.DPMinibatchPenalty, {}, True),
        ("barker", dp.DPBarker, {"batch_size": 150, "tempering": 0.1}, True),
        ("sgld", dp.DPSGLD, {"n_steps": 5}, True),
        ("sghmc", dp.DPSGHMC, {"n_leapfrog": 5}, True),
        ("sgnht", dp.DPSGNHT, {"n_steps": 5}, True),
    )
]
