"""Wrong inputs, as they were found by trying: one message with the cause and the fix, before anything is charged."""

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr
from conftest import QUIET
from xarray import DataTree

import pymc_dp as dp

N = 60
RNG = np.random.default_rng(0)
X, Y, REALS = RNG.uniform(-1, 1, size=(N, 2)), RNG.integers(0, 2, size=N), RNG.normal(size=N)
PERSON = np.arange(N) // 3
FRAME = pd.DataFrame({"age": X[:, 0], "income": X[:, 1], "default": Y, "word": ["secret"] * N})
ORDINARY = DataTree.from_dict({"posterior": xr.Dataset({"mu": (("chain", "draw"), np.zeros((2, 5)))})})
ENTRY = "secret"


def logistic(x=X, y=Y):
    with pm.Model() as model:
        pm.Bernoulli("y", logit_p=pm.math.dot(pm.Data("x", x), pm.Normal("b", shape=2)), observed=y)
    return model


def normal(y):
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu"), 1.0, observed=y)
    return model


def written(write):
    with pm.Model() as model:
        write()
    return model


def sampled(budget, model=None, **options):
    with logistic() if model is None else model:
        return pm.sample(**{"draws": 4, "chains": 1, "cores": 1, "budget": budget, **QUIET, **options})


def within(act, model=None):
    with model or logistic():
        return act()


def with_step(budget, **settings):
    with logistic():
        return pm.sample(step=dp.DPSurrogateHMC(budget=budget, **settings), draws=4, chains=1, **QUIET)


def elsewhere(step):
    with logistic():
        return pm.sample(step=step, draws=4, chains=1, **QUIET)


def dry(budget, synthetic, **options):
    with logistic():
        return dp.dry_run(budget, synthetic=synthetic, **options)


def table(**columns):
    return dp.Table(FRAME, **columns)


def constant_length():
    pm.Bernoulli("y", logit_p=pm.math.dot(np.vstack([X, X]), pm.Normal("b", shape=2)), observed=Y)


def two_lengths():
    mu = pm.Normal("mu")
    pm.Normal("y", mu, observed=REALS)
    pm.Normal("z", mu, observed=REALS[:10])


def discrete():
    pm.Normal("y", pm.Poisson("mu", 2), observed=REALS)


def saved(budget, folder):
    budget.save(folder / "budget.db")
    return folder / "budget.db"


def text_file(folder):
    (folder / "likelihood.nc").write_text("no likelihood")
    return folder / "likelihood.nc"


#: Of ``pm.sample(budget=..., **options)``: what is passed, and what the message says.
OPTIONS = {
    "budget a number": ({"budget": 3.0}, r"is a float: write budget=dp\.PrivacyBudget"),
    "budget a whole number": ({"budget": 3}, r"is a int: write budget="),
    "budget its class": ({"budget": dp.PrivacyBudget}, r"the class PrivacyBudget itself: write"),
    "budget a pair": ({"budget": (3.0, 1e-6)}, r"is a tuple: write"),
    "budget a dict": ({"budget": {"epsilon": 3}}, r"is a dict: write"),
    "budget a path": ({"budget": "budget.db"}, r"is a str: write .* dp\.PrivacyBudget\.load\(path\)"),
    "budget as step": ({"budget": None, "step": dp.PrivacyBudget(1.0, 1e-6)}, r"pass it as budget="),
    "step a class": ({"step": dp.DPHMC}, r"the class DPHMC, not a step: write step=dp\.DPHMC\(\)"),
    "step a class, no budget": ({"budget": None, "step": dp.DPHMC}, r"the class DPHMC, not a step"),
    "steps of classes": ({"step": [dp.DPHMC]}, r"the class DPHMC, not a step"),
    "step a name": ({"step": "DPHMC"}, r"step= is a name, 'DPHMC'"),
    "step a number": ({"step": 3}, "no differentially private step"),
    "no steps": ({"step": []}, "no differentially private step"),
    "draws a word": ({"draws": "many"}, "draws must be a whole number, but is a str"),
    "draws a float": ({"draws": 10.0}, "draws must be a whole number"),
    "no draws": ({"draws": 0}, "draws must be at least 1"),
    "draws below zero": ({"draws": -1}, "draws must be at least 1"),
    "tune below zero": ({"tune": -1}, "tune must be at least 0"),
    "tune a word": ({"tune": "1"}, "tune must be a whole number"),
    "tune a float": ({"tune": 2.5}, "tune must be a whole number"),
    "no chains": ({"chains": 0}, "chains must be at least 1"),
    "chains a float": ({"chains": 2.0}, "chains must be a whole number"),
    "no cores": ({"cores": 0}, "cores must be at least 1"),
    "cores a word": ({"cores": "2"}, "cores must be a whole number"),
    "seed a word": ({"random_seed": "a"}, "random_seed must be what"),
    "seed -1": ({"random_seed": -1}, "Leave it out for no seed"),
    "seed a float": ({"random_seed": 1.5}, "random_seed must be what"),
    "progressbar a number": ({"progressbar": 3}, "progressbar must be True, False or a name"),
    "progressbar unknown": ({"progressbar": "bar"}, "progressbar must be one of"),
    "theme a number": ({"progressbar_theme": 3}, "progressbar_theme must be a theme of rich"),
    "initvals a list": ({"initvals": [1.0]}, "initvals must be a dict"),
    "initvals unknown": ({"initvals": {"nope": 1.0}}, "'nope'.*no free variables"),
    "initvals of another shape": ({"initvals": {"b": np.zeros(5)}}, r"has shape \(5,\), but 'b' has \(2,\)"),
    "initvals nan": ({"initvals": {"b": np.full(2, np.nan)}}, "not finite in 'b'"),
    "initvals a word": ({"initvals": {"b": "zero"}}, "initial values cannot be computed"),
    "init of NUTS": ({"init": "advi"}, "init= is of NUTS"),
    "var_names unknown": ({"var_names": ["nope"]}, "no variable 'nope'"),
    "var_names a word": ({"var_names": "b"}, "var_names must be a list of names"),
    "var_names empty": ({"var_names": []}, "at least one variable"),
    "callback a number": ({"callback": 3}, "callback must be a function"),
    "mp_ctx unknown": ({"mp_ctx": "spoon"}, "mp_ctx must be one of"),
    "blas_cores a word": ({"blas_cores": "x"}, "blas_cores must be a whole number"),
    "an option that nobody has": ({"drws": 5}, "no option drws"),
    "acceptance above one": ({"target_accept": 1.5}, "target_accept must lie strictly between 0 and 1"),
    "depth of no tree": ({"max_treedepth": 0}, "max_treedepth must be at least 1"),
    "a mapping for NUTS": ({"nuts": {"target_accept": 0.9}}, "no option nuts.*of their own: target_accept"),
    "a setting of steps": ({"budget_share": 0.5}, r"no option budget_share.*step=dp\.DPSurrogateHMC\(budget_share="),
    "another library": ({"nuts_sampler": "numpyro"}, r"cannot run a DP step.*dp\.PrivateLikelihood"),
    "trace": ({"trace": []}, "trace= would store"),
    "a trace back": ({"return_inferencedata": False}, "would return a trace"),
    "log-likelihoods": ({"idata_kwargs": {"log_likelihood": True}}, "may add values computed from the data"),
    "epsilon beside": ({"epsilon": 3}, "no option epsilon"),
    "data a frame": ({"data": FRAME}, r"must be a pymc_dp\.Table, not a DataFrame.*dp\.Table\(frame"),
    "data a path": ({"data": "rows.parquet"}, r"must be a pymc_dp\.Table, not a str"),
    "unit a number": ({"unit": 3}, "unit must be"),
    "unit an array": ({"unit": PERSON}, "is unit_index="),
    "unit unknown": ({"unit": "persn"}, r"'persn' names no dim.*no data variable.*dp\.Table\("),
    "unit twice": ({"unit": "row", "unit_index": PERSON}, "leave one out"),
    "unit_index unknown": ({"unit_index": "nope"}, "names no data variable of the model; it has 'x'"),
    "unit_index too short": ({"unit_index": np.arange(3)}, "another length than the table"),
    "unit_index of labels": ({"unit_index": np.array([ENTRY] * N)}, "must be whole numbers, but are"),
    "unit_index of floats": ({"unit_index": np.zeros(N)}, "must be whole numbers, but are float64"),
    "unit_index a number": ({"unit_index": 3}, "has 0 axes"),
    "unit_index a matrix": ({"unit_index": np.zeros((N, 1), int)}, "has 2 axes"),
    "all rows one unit": ({"unit_index": np.zeros(N, int)}, "All rows belong to one unit"),
    "a step for another unit": ({"step": dp.DPHMC(unit="row"), "unit_index": PERSON}, "pass it where the step gets"),
}
#: Settings of a step, which is made with a budget.
SETTINGS = {
    "setting unknown": ({"steps": 3}, "DPSurrogateHMC has no argument steps"),
    "share above one": ({"budget_share": 2.0}, "budget_share must be at most 1"),
    "clip_diagnostics True": ({"clip_diagnostics": True}, "clip_diagnostics must be one of"),
    "keep_releases a word": ({"keep_releases": "yes"}, "keep_releases must be True or False"),
    "insecure_seed True": ({"insecure_seed": True}, "insecure_seed must be a whole number"),
    "no newton steps": ({"newton_steps": 0}, "newton_steps must be at least 1"),
    "shares a dict": ({"shares": {"centre": 1}}, r"shares must be a Shares\("),
    "clip bound 0": ({"clip_gradient": 0}, "clip_gradient must be above zero"),
    "clip bound a word": ({"clip_gradient": "auto"}, "clip_gradient must be a real number"),
    "no trajectories": ({"trajectories": 0}, "trajectories must be at least 1"),
    "noise_aware a word": ({"noise_aware": "yes"}, "noise_aware must be True or False"),
    "synthetic a frame": ({"synthetic": FRAME}, "synthetic must be a pm.Model"),
    "vars unknown": ({"vars": ["nope"]}, "no free variable"),
    "a unit that the call contradicts": ({"unit": 3}, "unit must be"),
}
#: Models, made and sampled with a budget.
MODELS = {
    "outcomes of labels": (lambda: normal(np.array([ENTRY, "b"] * 30)), "'y' are labels or objects.*Categorical"),
    "outcomes in a list of labels": (lambda: normal([ENTRY, "b"] * 30), "'y' are labels or objects.*Categorical"),
    "outcomes of objects": (lambda: normal(np.array([1.0, ENTRY, None] * 20, dtype=object)), "'y' are labels"),
    "outcomes of categories": (lambda: normal(pd.Series([ENTRY, "b"] * 30, dtype="category")), "'y' are labels"),
    "outcomes a column of words": (lambda: normal(FRAME[["word"]]), "'y' are labels"),
    "yes and no": (lambda: logistic(y=np.array(["yes", "no"] * 30)), "'y' are labels"),
    "covariates of labels": (
        lambda: logistic(x=np.array([["a", ENTRY]] * N)),
        "'x' are labels.*For unit= labels of persons",
    ),
    "a missing outcome": (lambda: normal(np.where(np.arange(N) == 3, np.nan, REALS)), "missing observed values"),
    "all outcomes missing": (lambda: normal(np.full(N, np.nan)), "missing observed values"),
    "masked outcomes": (lambda: normal(np.ma.masked_array(REALS, REALS > 1)), "missing observed values"),
    "a number as outcome": (lambda: normal(1.0), "a single number, not a table"),
    "one row": (lambda: normal(np.ones(1)), "no rows or a single one"),
    "no row": (lambda: normal(np.ones(0)), "no rows or a single one"),
    "covariates for more rows": (lambda: written(constant_length), "as many rows as the observed"),
    "outcomes of two lengths": (lambda: written(two_lengths), "different numbers of rows"),
    "nothing observed": (lambda: written(lambda: pm.Normal("mu")), "pass the data as observed="),
    "nothing free": (lambda: written(lambda: pm.Normal("y", 0, 1, observed=REALS)), "no free one"),
    "only a potential": (lambda: written(lambda: pm.Potential("p", -((REALS - pm.Normal("mu")) ** 2).sum())), "no obs"),
    "rows along the second axis": (lambda: normal(np.zeros((3, 60))), "another has 60 entries.*unit="),
    "an effect of each row": (lambda: normal_of(pm.Normal, shape=N), "has one entry for each row"),
    "a discrete parameter": (lambda: written(discrete), "is discrete"),
}


def normal_of(prior, **options):
    with pm.Model() as model:
        pm.Normal("y", prior("mu", **options), 1.0, observed=REALS)
    return model


#: Everything else: what is called with a budget and a folder.
CALLS = {
    "no model": (lambda b, _: pm.sample(budget=b, **QUIET), r"no model here: .*inside of `with model:`"),
    "a step without a model": (lambda b, _: dp.DPHMC(budget=b), "no model here"),
    "a likelihood without a model": (lambda b, _: dp.private_likelihood(budget=b), "no model here"),
    "a plan without a model": (lambda b, _: b.plan(dp.DPHMC()), "no model here"),
    "a dry run without a model": (lambda b, _: dp.dry_run(b), "no model here"),
    "add-remove": (
        lambda b, _: sampled(dp.PrivacyBudget(3, 1e-6, "add-remove"), step=dp.DPBarker()),
        "accounted for under substitution only",
    ),
    "data without a budget": (
        lambda b, _: within(lambda: pm.sample(data=table(x=["age", "income"], y="default"))),
        "pass budget=",
    ),
    "step for another model": (
        lambda b, _: elsewhere(within(lambda: dp.DPSurrogateHMC(budget=b))),
        "another model object",
    ),
    # Tables
    "a column that is not there": (lambda b, _: sampled(b, data=table(x=["age", "incme"], y="default")), "'incme'"),
    "an outcome that is not there": (lambda b, _: sampled(b, data=table(x=["age", "income"], y="defalt")), "'defalt'"),
    "no column for the outcome": (lambda b, _: sampled(b, data=table(x=["age", "income"])), "Pass y="),
    "too few columns": (lambda b, _: sampled(b, data=table(x=["age"], y="default")), "shape"),
    "a column of words": (lambda b, _: sampled(b, data=table(x=["age", "word"], y="default")), "'word' is"),
    "a unit that is not there": (
        lambda b, _: sampled(b, data=table(x=["age", "income"], y="default", unit="persn")),
        "'persn'",
    ),
    "a table of None": (lambda b, _: dp.Table(None, x="a"), "cannot be read from a NoneType"),
    "a table of an array": (lambda b, _: dp.Table(X, x="a"), "cannot be read from a ndarray"),
    "a table without columns": (lambda b, _: dp.Table(FRAME), "say which columns"),
    "a column by number": (lambda b, _: dp.Table(FRAME, x=[3]), "must be the name of a column"),
    "schema misspelt": (lambda b, _: dp.Table(FRAME, shema=[dp.YesNo("default")]), r"no option.*declared by schema="),
    "a file that is not there": (
        lambda b, path: sampled(b, data=dp.Table(path / "no.parquet", x="a", y="b")),
        "no file",
    ),
    "a text file": (
        lambda b, path: sampled(b, data=dp.Table(path / "rows.csv", x="a", y="b")),
        r"neither a Parquet|no file",
    ),
    "a table without rows": (
        lambda b, _: sampled(b, data=dp.Table(FRAME[:0], x=["age", "income"], y="default")),
        "no rows or a single one",
    ),
    "two units with a table": (
        lambda b, _: sampled(b, data=table(x=["age", "income"], y="default"), unit_index="x"),
        r"named there: Table\(\.\.\., unit=\)",
    ),
    # Budgets
    "epsilon 0": (lambda b, _: dp.PrivacyBudget(0, 1e-6), "epsilon must be above zero"),
    "epsilon below zero": (lambda b, _: dp.PrivacyBudget(-1, 1e-6), "epsilon must be above zero"),
    "epsilon nan": (lambda b, _: dp.PrivacyBudget(float("nan"), 1e-6), "epsilon must be finite"),
    "epsilon a word": (lambda b, _: dp.PrivacyBudget("1", 1e-6), "epsilon must be a real number"),
    "epsilon None": (lambda b, _: dp.PrivacyBudget(None, 1e-6), "epsilon must be a real number"),
    "delta 0": (lambda b, _: dp.PrivacyBudget(1, 0), "delta must lie strictly between 0 and 1"),
    "delta 1": (lambda b, _: dp.PrivacyBudget(1, 1), "delta must lie strictly between 0 and 1"),
    "exchanged": (lambda b, _: dp.PrivacyBudget(1e-6, 1.0), "delta must lie strictly between 0 and 1"),
    "relation misspelt": (lambda b, _: dp.PrivacyBudget(1, 1e-6, "add_remove"), "'substitute', 'add-remove'"),
    "an empty name": (lambda b, _: dp.PrivacyBudget(1, 1e-6, data_name=""), "data_name must be a name"),
    "reserved_share 2": (lambda b, _: dp.PrivacyBudget(1, 1e-6, reserved_share=2), "at most 1"),
    "another table": (lambda b, _: b.for_data("other"), "is bound to no table"),
    "load where nothing is": (lambda b, path: dp.PrivacyBudget.load(path / "none.db"), "no saved budget at"),
    "load None": (lambda b, _: dp.PrivacyBudget.load(None), "path must be the path of a file"),
    "load a text file": (lambda b, path: dp.PrivacyBudget.load(text_file(path)), "cannot be used|not a saved budget"),
    "load, then save": (
        lambda b, path: dp.PrivacyBudget.load(saved(b, path)).save(path / "second.db"),
        "is kept in .*nothing is left to save",
    ),
    "save twice": (lambda b, path: (saved(b, path), b.save(path / "second.db")), "nothing is left to save"),
    "save over another": (lambda b, path: dp.PrivacyBudget(1, 1e-6).save(saved(b, path)), "never replaced"),
    "save in no folder": (lambda b, path: b.save(path / "none" / "budget.db"), "Choose another folder"),
    "plan a word": (lambda b, _: within(lambda: b.plan("DPHMC")), "step must be a sampler .* but is a str"),
    "plan a class": (lambda b, _: within(lambda: b.plan(dp.DPHMC)), "the class DPHMC itself"),
    "plan no steps": (lambda b, _: within(lambda: b.plan([])), "at least one step"),
    "plan no draws": (lambda b, _: within(lambda: b.plan(draws=0)), "draws must be at least 1"),
    "plan a frame": (lambda b, _: within(lambda: b.plan(data=FRAME)), r"must be a pymc_dp\.Table"),
    "draws of a budget that chooses noise": (lambda b, _: within(lambda: b.max_draws(dp.DPHMC())), "chooses the noise"),
    "charge a number": (lambda b, _: b.charge(3), "What is charged is a plan"),
    # A released likelihood
    "a likelihood without a budget": (lambda b, _: within(dp.private_likelihood), "pass budget="),
    "a likelihood of a number": (lambda b, _: within(lambda: dp.private_likelihood(budget=3.0)), "is a float: write"),
    "the budget first": (lambda b, _: within(lambda: dp.private_likelihood(b)), "passed by name"),
    "a likelihood with draws": (lambda b, _: within(lambda: dp.private_likelihood(budget=b, draws=3)), "without draws"),
    "a likelihood with a step": (
        lambda b, _: within(lambda: dp.private_likelihood(budget=b, step=dp.DPHMC())),
        "by DPSurrogateHMC",
    ),
    "a likelihood with epsilon": (
        lambda b, _: within(lambda: dp.private_likelihood(budget=b, epsilon=3)),
        "no argument epsilon",
    ),
    "a likelihood beside a frame": (
        lambda b, _: within(lambda: dp.private_likelihood(data=FRAME, budget=b)),
        r"must be a pymc_dp\.Table",
    ),
    "a likelihood of a model by name": (lambda b, _: dp.private_likelihood("model", budget=b), "must be a pm.Model"),
    "the likelihood of an ordinary result": (lambda b, _: dp.PrivateLikelihood(ORDINARY), "has no likelihood"),
    "the likelihood of None": (lambda b, _: dp.PrivateLikelihood(None), "has no likelihood"),
    "a likelihood that is not there": (lambda b, path: dp.PrivateLikelihood.load(path / "no.nc"), "no likelihood at"),
    "a likelihood in a text file": (lambda b, path: dp.PrivateLikelihood.load(text_file(path)), "no likelihood at"),
    # Dry runs
    "a dry run of nothing": (lambda b, _: within(dp.dry_run), "needs a budget"),
    "a dry run of a number": (lambda b, _: within(lambda: dp.dry_run(3.0)), "must be a budget, or a sampler"),
    "a dry run of a class": (
        lambda b, _: within(lambda: dp.dry_run(dp.PrivacyBudget)),
        "must be a budget, or a sampler",
    ),
    "a dry run of a sampler's class": (lambda b, _: within(lambda: dp.dry_run(dp.DPHMC, budget=b)), "class DPHMC"),
    "a dry run without a budget": (lambda b, _: within(lambda: dp.dry_run(dp.DPHMC())), "DPHMC needs a budget"),
    "a dry run of two budgets": (
        lambda b, _: within(lambda: dp.dry_run(b, budget=dp.PrivacyBudget(1, 1e-6))),
        "leave one out",
    ),
    "a dry run without a table": (lambda b, _: within(lambda: dp.dry_run(b)), "Pass synthetic="),
    "a dry run beside a frame": (lambda b, _: within(lambda: dp.dry_run(b, data=FRAME)), r"must be a pymc_dp\.Table"),
    "a dry run on a frame": (lambda b, _: dry(b, FRAME), "synthetic must be a pm.Model"),
    "a dry run on the data": (lambda b, _: dry(b, logistic(X[:50], Y[:50])), "Write it on synthetic data"),
    "a dry run on fewer rows": (lambda b, _: dry(b, logistic(X[:20] + 0, Y[:20] + 0)), "about as many"),
    "a dry run on another model": (lambda b, _: dry(b, normal(REALS)), "other free variables"),
    # Reports and plots
    "the quality of an ordinary result": (lambda b, _: dp.diagnostics.quality_report(ORDINARY), "no group `privacy`"),
    "the quality in numbers of one": (lambda b, _: dp.diagnostics.quality(ORDINARY), "no group `privacy`"),
    "the quality of None": (lambda b, _: dp.diagnostics.quality_report(None), "not a NoneType"),
    "the quality of a group": (lambda b, _: dp.diagnostics.quality_report(ORDINARY["posterior"]), "no group `privacy`"),
    "the quality of a dataset": (lambda b, _: dp.diagnostics.quality_report(xr.Dataset()), "not a Dataset"),
    "the privacy of None": (lambda b, _: dp.diagnostics.privacy_report(None), "not a NoneType"),
    "a plot of an ordinary result": (lambda b, _: dp.plots.plot_private(ORDINARY), "no group `privacy`"),
    "a plot of a number": (lambda b, _: dp.plots.plot_privacy(3.0), "not a float"),
    # Steps by hand
    "a step with a number as budget": (lambda b, _: within(lambda: dp.DPHMC(budget=3.0)), "DPHMC needs a budget"),
    "a step size below zero": (
        lambda b, _: within(lambda: dp.DPHMC(budget=b, step_size=-1)),
        "step_size must be above",
    ),
    "no leaps": (lambda b, _: within(lambda: dp.DPHMC(budget=b, n_leapfrog=0)), "n_leapfrog must be at least 1"),
    "a word as public": (lambda b, _: dp.public("x"), "takes an array of numbers"),
}
CASES = {
    **{
        name: (lambda b, _, given=given: sampled(**{"budget": b, **given}), said)
        for name, (given, said) in OPTIONS.items()
    },
    **{name: (lambda b, _, given=given: with_step(b, **given), said) for name, (given, said) in SETTINGS.items()},
    **{name: (lambda b, _, make=make: sampled(b, make()), said) for name, (make, said) in MODELS.items()},
    **CALLS,
}


@pytest.mark.filterwarnings("ignore:Data in .* contains missing values")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", CASES)
def test_a_wrong_input_is_refused_before_the_charge_with_cause_and_fix(name, tmp_path):
    budget = dp.PrivacyBudget(3.0, 1e-6)
    call, said = CASES[name]
    with pytest.raises(dp.PrivacyError, match=f"(?s){said}") as caught:
        call(budget, tmp_path)
    assert budget.history == ()
    message = str(caught.value)
    assert message.rstrip().endswith((".", ".)"))
    assert len(message) < 500
    assert ENTRY not in message
    for kept in (caught.value.__cause__, caught.value.__context__):
        assert kept is None or ENTRY not in str(kept)
