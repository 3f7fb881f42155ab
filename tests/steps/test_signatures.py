"""Every sampler shows all of its arguments, with what they mean, to people, editors and type checkers."""

import inspect
import re
import subprocess
import sys

import pytest
from contributed import DPCrankNicolson

import pymc_dp as dp
from pymc_dp.steps.arguments import SharedArguments
from pymc_dp.steps.base import DPStep

STEPS = [
    dp.DPHMC,
    dp.DPMALA,
    dp.DPPenalty,
    dp.DPMinibatchPenalty,
    dp.DPBarker,
    dp.DPSGHMC,
    dp.DPSGLD,
    dp.DPSGNHT,
    dp.DPSurrogateHMC,
]
OF_BATCHES = {"batch_size", "n_units", "tempering"}
#: By name, some that each has from its own constructor and some from others; and what it does not take.
OWN = {
    dp.DPHMC: ({"clip_gradient", "n_leapfrog", "gradient_share"}, {"batch_size"}),
    dp.DPMALA: ({"clip_gradient", "step_size", "gradient_share"}, {"n_leapfrog", "batch_size"}),
    dp.DPPenalty: ({"clip_log_ratio", "proposal", "proposal_scale"}, {"batch_size", "n_units"}),
    dp.DPMinibatchPenalty: ({"clip_log_ratio", "proposal", "proposal_scale", *OF_BATCHES}, {"clip_gradient"}),
    dp.DPBarker: ({"proposal", "proposal_scale", *OF_BATCHES}, {"clip_log_ratio"}),
    dp.DPSGHMC: ({"friction", "clip_gradient", "sampling_probability", *OF_BATCHES}, {"clip_log_ratio"}),
    dp.DPSGLD: ({"n_steps", "clip_gradient", "sampling_probability", *OF_BATCHES}, {"friction"}),
    dp.DPSGNHT: ({"diffusion", "clip_gradient", "sampling_probability", *OF_BATCHES}, {"friction"}),
    dp.DPSurrogateHMC: ({"synthetic", "shares", "noise_aware"}, {"step_size"}),
}


@pytest.mark.parametrize("step", [*STEPS, DPStep, DPCrankNicolson])
def test_shared_arguments_are_in_every_signature(step):
    parameters = inspect.signature(step).parameters
    assert set(SharedArguments.__annotations__) | {"vars"} <= set(parameters)
    assert not any(each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD) for each in parameters.values())
    assert parameters["budget_share"].default == 1.0
    assert parameters["clip_diagnostics"].default == "private"
    assert next(iter(parameters)) == "vars"


@pytest.mark.parametrize("step", STEPS)
def test_a_signature_names_what_a_sampler_takes_and_nothing_else(step):
    has, has_not = OWN[step]
    parameters = inspect.signature(step).parameters
    assert has <= set(parameters)
    assert has_not.isdisjoint(parameters)


@pytest.mark.parametrize("step", STEPS)
def test_every_argument_is_documented_where_the_sampler_is(step):
    documented = re.findall(r"^(\w+(?:, \w+)*)(?: :.*)?\n(?=    )", inspect.getdoc(step) or "", re.MULTILINE)
    names = {name for line in documented for name in line.split(", ")}
    assert set(inspect.signature(step).parameters) <= names
    assert "See `pymc_dp.steps" not in step.__doc__
    assert "Part of the remaining budget" in step.__doc__


def test_shared_arguments_are_typed_as_they_are():
    own = inspect.signature(DPStep.__init__).parameters
    annotations = {name: each.annotation for name, each in own.items() if each.kind is each.KEYWORD_ONLY}
    assert annotations == SharedArguments.__annotations__


@pytest.mark.nightly
def test_a_type_checker_knows_the_arguments(tmp_path):
    script = tmp_path / "user.py"
    script.write_text(
        "import pymc_dp as dp\n"
        "budget = dp.PrivacyBudget(1.0, 1e-6)\n"
        "reveal_type(dp.DPHMC(clip_gradient=1.0, budget=budget, insecure_seed=3))\n"
        "dp.DPMinibatchPenalty(clip_log_ratio=1.0, batch_size=5, budget=budget)\n"
        "dp.DPSGLD(step_size=1.0, tempering=0.5, budget=budget)\n"
        "dp.DPHMC(budgetshare=1.0)\n"
        "dp.DPMALA(n_leapfrog=3)\n"
    )
    found = subprocess.run(  # noqa: S603
        [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", str(script)],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    assert re.search(r"user.py:3: note: .*DPHMC", found)
    assert {line for line in range(1, 8) if f"user.py:{line}: error" in found} == {6, 7}
