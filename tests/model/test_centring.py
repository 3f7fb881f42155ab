"""Models in the centred form: the law of everything that the user wrote is the same, and what can be is centred."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from conftest import QUIET
from pymc.model.fgraph import clone_model
from pytensor.compile.builders import OpFromGraph

import pymc_dp as dp
from pymc_dp.compiling import INTERPRETED
from pymc_dp.exceptions import InvalidArgument, UnsupportedModel
from pymc_dp.model.centring import as_written, centred, form_of, in_coordinates
from pymc_dp.model.origins import shares_tables
from pymc_dp.model.parameters import ParameterVector
from pymc_dp.model.structure import bounds_of_parameters, in_likelihood
from pymc_dp.model.transforms import Itself, LogarithmOf
from pymc_dp.model.view import read

GROUPS, ROWS = 4, 60
generator = np.random.default_rng(0)
X, Y, GROUP = generator.normal(size=ROWS), generator.normal(size=ROWS), generator.integers(0, GROUPS, ROWS)


def scale(name="tau"):
    return pm.HalfNormal(name, 1.0)


def offsets(name="z", **options):
    return pm.Normal(name, 0.0, 1.0, dims="group", **options)


def intercepts(group, x):
    return (pm.Deterministic("effect", pm.Normal("mu") + scale() * offsets(), dims="group"))[group]


def intercepts_by_names(group, x):
    deviation = pm.Deterministic("deviation", scale() * offsets(), dims="group")
    return pm.Deterministic("effect", pm.Normal("mu") + deviation, dims="group")[group]


def intercepts_of_rows(group, x):
    return pm.Normal("mu") + offsets()[group] * scale()


def intercepts_by_named_scales(group, x):
    of_scale = pm.Deterministic("sd", 2.0 * scale() ** 0.5)
    return (pm.Normal("mu") + of_scale * offsets())[group]


def intercepts_by_truncated_scales(group, x):
    return (pm.Normal("mu") + pm.TruncatedNormal("tau", 1.0, 2.0, lower=0.0) * offsets())[group]


def slopes(group, x):
    return x * offsets()[group] * pm.math.exp(pm.Normal("log_tau"))


def two_effects(group, x):
    z = pm.StudentT("z", nu=4.0, mu=0.5, sigma=2.0, dims=("kind", "group"))
    both = z * pm.Exponential("tau", 1.0, dims="kind")[:, None]
    return both[0, group] + both[1, group] * x


def horseshoe(group, x):
    return (offsets() * pm.HalfCauchy("local", 1.0, dims="group") * scale())[group]


def zero_sum(group, x):
    return pm.Uniform("tau", 0.0, 3.0) * pm.ZeroSumNormal("z", 1.5, dims="group")[group]


def scales_of_kinds(group, x):
    of_kind = pm.HalfNormal("tau", 1.0, dims="kind")[dp.public([0, 1, 1, 0])]
    return (pm.Normal("mu") * dp.public([0.5, 1.0, 2.0, -1.0]) + of_kind * offsets())[group]


def nested(group, x):
    level = pm.Normal("mu") + scale("tau_of_levels") * pm.Normal("z_of_levels", dims="kind")
    return pm.Deterministic("effect", pm.Normal("effect_of", level[[0, 0, 1, 1]], scale(), dims="group"))[group]


def ratio_of_scales(group, x):
    return offsets("z")[group] * (scale() / (1.0 + pm.Gamma("b", 2.0, 1.0)))


def less_mean(group, x):
    star = pm.Normal("z", 0.5, scale(), dims="group")
    return pm.Normal("mu") + pm.Deterministic("effect", star - star.mean(), dims="group")[group]


def less_mean_and_scaled(group, x):
    z = offsets()
    return (scale() * (z - z.mean()))[group] + pm.Normal("mu")


def walk(group, x):
    start = pm.Normal.dist(0.0, 2.0)
    return pm.GaussianRandomWalk("z", mu=0.1, sigma=scale(), init_dist=start, dims="group")[group]


def total_of_a_potential(group, x):
    tau, z = scale(), offsets()
    return pm.Potential("p", pm.Normal("mu") + tau * z)[group]


def factor():
    return pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=pm.Exponential.dist(1.0))[0]


def correlated(group, x):
    each = pm.Normal("mu", dims="kind") + pm.math.dot(pm.Normal("z", dims=("group", "kind")), factor().T)
    return each[group, 0] + each[group, 1] * x


def correlated_from_the_left(group, x):
    each = pm.Deterministic("each", (factor() @ pm.Normal("z", dims=("kind", "group"))).T, dims=("group", "kind"))
    return pm.Normal("mu") + each[group, 0] + each[group, 1] * x


def written(predictor, **changed):
    with pm.Model(coords={"group": list("abcd"), "kind": ["level", "slope"]}) as model:
        group, x = pm.Data("group_of", GROUP), pm.Data("x", X)
        pm.Normal("y", predictor(group, x, **changed), pm.HalfNormal("sigma", 1.0), observed=pm.Data("response", Y))
    return model


#: The user's variable, and those in its place.
FORMS = {
    intercepts: ("z", "z_centred"),
    intercepts_by_names: ("z", "z_centred"),
    intercepts_of_rows: ("z", "z_scaled"),
    total_of_a_potential: ("z", "z_scaled"),
    intercepts_by_named_scales: ("z", "z_centred"),
    intercepts_by_truncated_scales: ("z", "z_centred"),
    slopes: ("z", "z_scaled"),
    two_effects: ("z", "z_scaled"),
    horseshoe: ("z", "z_scaled"),
    zero_sum: ("z", "z_scaled"),
    scales_of_kinds: ("z", "z_centred"),
    nested: ("z_of_levels", "z_of_levels_centred"),
    ratio_of_scales: ("z", "z_scaled"),
    less_mean: ("z", "z_less_mean", "z_mean"),
    less_mean_and_scaled: ("z", "z_less_mean_scaled", "z_mean"),
    walk: ("z", "z_start", "z_steps"),
    correlated: ("z", "z_centred"),
    correlated_from_the_left: ("z", "z_scaled"),
}


#: Of the same form as others, or built of the same parts.
_MORE_LAWS = (
    intercepts_by_names,
    intercepts_by_named_scales,
    intercepts_by_truncated_scales,
    two_effects,
    horseshoe,
    less_mean_and_scaled,
)
_MORE_LAWS += (scales_of_kinds, ratio_of_scales, correlated)


@pytest.mark.parametrize(
    "predictor",
    [pytest.param(each, marks=[pytest.mark.nightly] if each in _MORE_LAWS else []) for each in FORMS],
    ids=lambda each: each.__name__,
)
def test_it_is_the_same_law(predictor):
    """The log-density differs by that of the Jacobian, the derivatives of the user's variable by the new ones."""
    model = written(predictor)
    name, *new = FORMS[predictor]
    form = centred(model)
    assert {rv.name for rv in form.free_RVs} == {rv.name for rv in model.free_RVs} - {name} | {*new}
    assert form.named_vars_to_dims[name] == model.named_vars_to_dims[name]
    if len(new) == 1:
        assert sorted(form.named_vars_to_dims[new[0]]) == sorted(model.named_vars_to_dims[name])
    parameters, transform = ParameterVector(form), model.rvs_to_transforms[model[name]]
    places = [place for place, rv in enumerate(form.free_RVs) if rv.name in new]
    of_user = form[name] if transform is None else transform.forward(form[name], *model[name].owner.inputs)
    inputs = form.value_vars
    with_user = pm.compile(inputs, form.replace_rvs_by_values([of_user])[0], mode=INTERPRETED, on_unused_input="ignore")
    densities = [each.compile_logp(mode=INTERPRETED) for each in (model, form)]
    theta = np.random.default_rng(1).normal(size=parameters.size)

    def user(at):
        return np.ravel(with_user(*parameters.split(at)))

    step, ways = 1e-4, np.concatenate([np.eye(theta.size)[parameters.slices[place]] for place in places])
    jacobian = [(user(theta + step * way) - user(theta - step * way)) / (2.0 * step) for way in ways]
    point = parameters.to_point(theta)
    value = model.rvs_to_values[model[name]].name
    moved = {each: number for each, number in point.items() if each not in [parameters.names[i] for i in places]}
    moved[value] = user(theta).reshape(np.shape(model.initial_point(0)[value]))
    _, log_jacobian = np.linalg.slogdet(np.array(jacobian))
    assert densities[0](moved) + log_jacobian == pytest.approx(densities[1](point), abs=1e-5)


@pytest.mark.parametrize("predictor", FORMS, ids=lambda each: each.__name__)
def test_rows_know_no_scale(predictor):
    form = centred(written(predictor))
    parameters = ParameterVector(form)
    known = in_likelihood(form, parameters)
    scales = {"chol", "tau", "log_tau", "local", "tau_of_levels", "b"}
    places = {rv.name: entries for rv, entries in zip(form.free_RVs, parameters.slices, strict=True)}
    assert scales & set(places)
    for name in scales & set(places):
        assert not known[places[name]].any()
    assert known[places["sigma"]].all()


def scale_of_either_sign(group, x):
    return (pm.Normal("tau") * offsets())[group]


def scale_of_rows(group, x):
    return pm.Normal("z") * (scale() * pm.math.exp(x))


def scale_of_an_array(group, x):
    return (offsets() * (scale() * np.array([1.0, 2.0, 1.0, 3.0])))[group]


def two_scales(group, x):
    z = offsets()
    return scale()[..., None] * z[group] + scale("another") * z[group] * x


def upper_triangle(group, x):
    factor()
    upper = pm.math.expand_packed_triangular(2, pm.modelcontext(None)["chol"], lower=False)
    each = pm.math.dot(pm.Normal("z", dims=("group", "kind")), upper.T)
    return each[group, 0] + each[group, 1] * x


def used_elsewhere(group, x):
    z = offsets()
    pm.Normal("another", pm.math.exp(z)[group], 1.0, observed=X)
    return (scale() * z)[group]


def square(group, x):
    z = offsets()
    return (scale() * z * z)[group]


def square_first(group, x):
    z = offsets()
    return (z * z * scale())[group]


def own_start(group, x):
    return (scale() * offsets(initval=np.ones(GROUPS)))[group]


def walk_with_heavy_tails(group, x):
    steps = pm.StudentT.dist(4.0, mu=0.0, sigma=scale())
    return pm.RandomWalk("z", innovation_dist=steps, init_dist=pm.Normal.dist(0.0, 2.0), dims="group")[group]


def no_scale(group, x):
    return (2.0 * offsets())[group]


def in_the_centred_form(group, x):
    return pm.Normal("effect", pm.Normal("mu"), scale(), dims="group")[group]


def less_another_mean(group, x):
    a = pm.Normal("z", 0.0, np.array([1.0, 2.0, 1.0, 3.0]), dims="group")
    return (a - a.mean())[group] + pm.Normal("mu")


def less_the_mean_of_several_scales(group, x):
    a = pm.Normal("z", 0.0, np.array([1.0, 2.0, 1.0, 3.0]))
    return (a - a.mean())[group] + pm.Normal("mu")


def product_of_a_potential(group, x):
    return pm.Potential("p", scale() * offsets())[group]


def less_half_the_mean(group, x):
    a = offsets()
    return (a - a.mean() / 2.0)[group] + pm.Normal("mu")


def less_mean_and_whole(group, x):
    a = offsets()
    return (a - a.mean())[group] + a[group] * x


LEFT = [
    square_first,
    upper_triangle,
    walk_with_heavy_tails,
    less_another_mean,
    less_half_the_mean,
    less_the_mean_of_several_scales,
    product_of_a_potential,
    less_mean_and_whole,
    scale_of_either_sign,
    scale_of_rows,
    scale_of_an_array,
    two_scales,
    used_elsewhere,
    square,
    own_start,
    no_scale,
    in_the_centred_form,
]


@pytest.mark.parametrize("predictor", LEFT, ids=lambda each: each.__name__)
def test_what_is_another_law_or_has_its_own_start_is_left_as_it_is(predictor):
    model = written(predictor)
    assert centred(model) is model


def test_a_scale_of_a_part_is_left_to_the_user():
    """Names say whether a location is in the variable: two models of one form only have the same."""
    names = {predictor: {rv.name for rv in centred(written(predictor)).free_RVs} for predictor in FORMS}
    assert "z_centred" in names[intercepts]
    assert "z_scaled" in names[intercepts_of_rows]


def test_it_is_one_object_until_the_model_changes_and_follows_its_data():
    model = written(intercepts)
    form = centred(model)
    assert centred(model) is form
    assert centred(form) is form
    with model:
        pm.set_data({"x": X[:7], "group_of": GROUP[:7], "response": Y[:7]})
    assert centred(model) is form
    assert read(form).row_split.n_rows == 7
    with model:
        pm.Normal("more")
    assert "more" in {rv.name for rv in centred(model).free_RVs}


def test_starts_that_are_set_later_are_seen():
    model = written(intercepts)
    assert centred(model) is not model
    model.set_initval(model["z"], np.ones(GROUPS))
    assert centred(model) is model


@pytest.mark.parametrize("copied", [clone_model, pm.Model.copy, lambda model: pm.observe(model, {"mu": 1.0})])
def test_models_that_pymc_copied_have_a_form_with_all_names(copied):
    """Their deterministic variables are the products themselves, and not copies."""
    model = copied(written(intercepts))
    form = centred(model)
    new = {rv.name for rv in form.free_RVs} - {rv.name for rv in model.free_RVs}
    assert len(new) == 1
    assert {*form.named_vars} == {*model.named_vars} | new
    assert all(form[name].name == name for name in form.named_vars)
    assert form["effect"] in form.deterministics


def test_new_names_are_no_others():
    with written(intercepts) as model:
        pm.Normal("z_centred_")
        pm.Deterministic("z_centred", model["mu"] + 1.0)
    assert "z_centred__" in {rv.name for rv in centred(model).free_RVs}


def test_priors_alone_have_the_form_of_what_is_computed_of_them():
    with pm.Model(coords={"group": list("abcd")}) as priors:
        pm.Deterministic("effect", pm.Normal("mu") + scale() * offsets(), dims="group")
    assert form_of(priors, ["mu", "tau_log__", "z_centred"]) is centred(priors)
    assert "z_centred" in {rv.name for rv in centred(priors).free_RVs}


CELLS = np.random.default_rng(5).normal(size=ROWS)


def sum_of_cells():
    return pm.math.sum(pt.stack([pt.constant(cell) for cell in CELLS[:25]]))


def cells_in_a_location(group, x):
    return (pm.Normal("mu") + sum_of_cells() * pm.Normal("b") + scale() * offsets())[group]


def cells_in_a_scale(group, x):
    return (scale() * pm.math.exp(sum_of_cells()) * offsets())[group]


def cells_in_an_operation(group, x):
    inner = pt.dvector()
    of_cells = OpFromGraph([inner], [inner.sum() * pt.constant(CELLS[:25]).sum()])(pt.stack([pm.Normal("mu"), 1.0]))
    return (of_cells + scale() * offsets())[group]


def walk_of_rows(group, x):
    return pm.GaussianRandomWalk("z", sigma=scale(), init_dist=pm.Normal.dist(0.0, 2.0), shape=ROWS)[np.arange(ROWS)]


def rows_less_their_mean(group, x):
    each = pm.Normal("z", 0.0, scale(), shape=ROWS)
    return (each - each.mean())[np.arange(ROWS)]


REFUSED = [cells_in_a_location, cells_in_a_scale, cells_in_an_operation, walk_of_rows, rows_less_their_mean]


@pytest.mark.parametrize("predictor", REFUSED, ids=lambda each: each.__name__)
def test_what_is_refused_as_it_was_written_is_refused_in_any_form(predictor):
    model = written(predictor)
    for form in (model, centred(model)):
        with pytest.raises(UnsupportedModel):
            read(form)


@pytest.mark.parametrize("predictor", [cells_in_a_location, cells_in_a_scale, cells_in_an_operation])
def test_arrays_of_single_numbers_are_in_no_form(predictor):
    """Whatever is read of the model as it was written: no new prior has them."""
    names = {rv.name for rv in centred(written(predictor)).free_RVs}
    assert "z_centred" not in names
    assert ("z" in names) == (predictor is cells_in_a_scale)


def test_arrays_that_are_public_no_more_are_refused():
    with pm.Model(coords={"group": list("abcd")}) as model:
        given = pm.Data("given", dp.public([0.5, 1.0, 2.0]))
        effect = pm.Normal("mu") * given.sum() + scale() * offsets()
        pm.Normal("y", effect[pm.Data("group_of", GROUP)], 1.0, observed=pm.Data("response", Y))
    assert read(centred(model)).parameters.size == 6
    with model:
        pm.set_data({"given": CELLS[:25]})
    with pytest.raises(UnsupportedModel):
        read(centred(model))


def test_arrays_that_a_model_was_given_are_those_of_its_form():
    x = np.ones(ROWS)
    with written(intercepts) as model:
        pm.Data("given", x)
    with written(intercepts) as another:
        pm.Data("given", x)
    assert shares_tables(centred(model), centred(another))


def test_the_form_is_the_one_that_has_the_names():
    model = written(intercepts)
    assert form_of(model, ["mu", "tau_log__"]) is centred(model)
    assert form_of(model, ["z"]) is model


@pytest.fixture(scope="module")
def drawn():
    """Return a model, a run of it, and what was charged."""
    random = np.random.default_rng(3)
    group, x = random.integers(0, 8, 4000), random.normal(size=4000)
    y = 1.0 + 0.7 * random.normal(size=8)[group] - 0.5 * x + 0.5 * random.normal(size=4000)
    with pm.Model(coords={"group": range(8)}) as model:
        effect = pm.Normal("mu", 0.0, 5.0) + pm.HalfNormal("tau", 1.0) * offsets()
        of_rows = pm.Deterministic("effect", effect, dims="group")[pm.Data("group_of", group)]
        predictor = of_rows + pm.Normal("slope") * pm.Data("x", x)
        pm.Normal("y", predictor, pm.HalfNormal("sigma", 1.0), observed=y)
        budget = dp.PrivacyBudget(8.0, 1e-6)
        step = dp.DPSurrogateHMC(insecure_seed=1)
        tree = pm.sample(draws=200, chains=2, cores=1, step=step, budget=budget, random_seed=1, **QUIET)
    return model, tree, budget


@pytest.mark.slow
def test_a_run_draws_what_the_user_wrote(drawn):
    model, tree, _ = drawn
    draws = tree["posterior"].to_dataset()
    assert {"mu", "tau", "z", "effect", "z_centred", "slope", "sigma"} == set(draws.data_vars)
    again = draws["mu"] + draws["tau"] * draws["z"]
    np.testing.assert_allclose(again.transpose(*draws["effect"].dims), draws["effect"], atol=1e-8)
    columns = np.column_stack([np.eye(8)[model["group_of"].get_value()], model["x"].get_value()])
    exact = np.linalg.lstsq(columns, model.rvs_to_values[model["y"]].eval(), rcond=None)[0]
    found = np.concatenate([draws["effect"].values, draws["slope"].values[..., None]], axis=-1)
    assert np.all(np.abs(found.mean(axis=(0, 1)) - exact) < 2.0 * found.std(axis=(0, 1)))
    assert np.all(found.std(axis=(0, 1)) < 0.1)
    assert not dp.diagnostics.quality(tree).biased


@pytest.mark.slow
def test_what_was_released_is_drawn_from_again_with_the_model_as_it_was_written(drawn):
    model, tree, budget = drawn
    spent = budget.epsilon_spent
    again = dp.PrivateLikelihood(tree, model).sample(100, chains=1, cores=1, tune=100, random_seed=1, **QUIET)
    assert {"z", "z_centred", "effect"} <= set(again["posterior"].data_vars)
    assert budget.epsilon_spent == spent
    with model:
        predicted = pm.sample_posterior_predictive(tree, var_names=["y"], predictions=True, progressbar=False)
    assert predicted["predictions"]["y"].shape == (2, 200, 4000)


@pytest.mark.slow
def test_reports_on_a_result_read_the_form_that_was_drawn(drawn):
    model, tree, _ = drawn
    with model:
        checked = dp.check(tree, budget=dp.PrivacyBudget(4.0, 1e-6))
    assert checked.tree is not None


def test_a_step_with_variables_moves_those_of_the_model_as_it_was_written():
    with written(intercepts) as model:
        budget = dp.PrivacyBudget(1.0, 1e-6)
        settings = {"clip_gradient": 1.0, "clip_log_ratio": 1.0, "step_size": 0.1, "prelude": None, "budget": budget}
        one = dp.DPHMC(vars=[model["z"], model["mu"]], **settings)
        assert one.parameters.names == [value.name for value in model.value_vars]
        assert dp.DPHMC(**settings).parameters.names != one.parameters.names


def test_initial_values_of_what_was_replaced_are_refused_by_name():
    with written(intercepts), pytest.raises(InvalidArgument, match=r"initvals names \['z'\].*z_centred"):
        pm.sample(budget=dp.PrivacyBudget(1.0, 1e-6), initvals={"z": np.zeros(GROUPS)}, **QUIET)


def line():
    return pm.Normal("a") + pm.Normal("b") * pm.Data("x", X)


def on_line(scale, family=pm.Normal, **others):
    """Return a function that makes rows of a location-scale family, with a scale that `scale` makes."""
    return lambda: family("y", mu=line(), sigma=scale(), **{name: make() for name, make in others.items()}, observed=Y)


COUNTS = np.arange(ROWS) % 5


def counts(alpha, predictor=line):
    mean = lambda: pm.math.exp(predictor())  # noqa: E731
    return lambda: pm.NegativeBinomial("y", mu=mean(), alpha=alpha(), observed=COUNTS)


def zeros():
    psi = pm.Uniform("psi", 0.0, 1.0)
    pm.ZeroInflatedNegativeBinomial("y", psi=psi, mu=pm.math.exp(line()), alpha=uniform(), observed=COUNTS)


def as_it_is(predictor):
    return lambda: pm.Normal("y", mu=predictor(), sigma=pm.HalfNormal("sigma"), observed=Y)


def of_groups():
    levels = pm.Normal("level", pm.Uniform("mu", -9.0, 9.0), pm.Uniform("tau", 0.0, 9.0), shape=GROUPS)
    pm.Normal("y", levels[pm.Data("g", GROUP)], pm.Uniform("s", 0.0, 9.0, shape=GROUPS)[GROUP], observed=Y)


def with_potential():
    pm.Potential("p", -pm.Uniform("b", 0.0, 9.0))
    as_it_is(lambda: pm.Normal("a") + pm.modelcontext(None)["b"] * pm.Data("x", X))()


def uniform(name="s"):
    return pm.Uniform(name, 0.0, 9.0)


#: Models, and the variables whose transforms change: to multiples of their logarithms, or to none ("itself").
CHANGED = {
    "a scale": (on_line(uniform), {"s": 1.0}),
    "a scale at most 1": (on_line(lambda: pm.Uniform("s", 0.0, 1.0)), {"s": 1.0}),
    "a truncated scale": (on_line(lambda: pm.TruncatedNormal("s", 1.0, 2.0, lower=0.0)), {"s": 1.0}),
    "a precision": (on_line(lambda: pm.Gamma("s", 1.0, 1.0) ** -0.5), {"s": -0.5}),
    "a power that is no short number": (on_line(lambda: pm.HalfNormal("s") ** (1.0 / 3.0)), {"s": 1.0 / 3.0}),
    "a variance": (on_line(lambda: pm.math.sqrt(pm.Deterministic("v", uniform()))), {"s": 0.5}),
    "a multiple": (on_line(lambda: 3.0 * pm.HalfNormal("s")), {}),
    "no power": (on_line(lambda: 3.0 + pm.HalfNormal("s")), {}),
    "a function of rows": (on_line(lambda: uniform() * pm.Data("w", np.abs(X))), {"s": 1.0}),
    "degrees of freedom": (
        on_line(uniform, pm.StudentT, nu=lambda: pm.Uniform("nu", 2.0, 60.0)),
        {"s": 1.0, "nu": 1.0},
    ),
    "negative bounds": (on_line(lambda: 9.0 + pm.Uniform("s", -3.0, 9.0)), {}),
    "bounds that vary": (on_line(lambda: pm.Uniform("s", 0.0, pm.HalfNormal("upper"))), {}),
    "scales of groups, and priors of levels": (of_groups, {}),
    "a shape": (counts(uniform), {"s": 1.0}),
    "a shape and a share": (zeros, {"s": 1.0}),
    "a coefficient": (as_it_is(lambda: pm.Normal("a") + uniform() * pm.Data("x", X)), {"s": None}),
    "a positive coefficient": (as_it_is(lambda: pm.Normal("a") + pm.HalfNormal("s") * pm.Data("x", X)), {"s": None}),
    "an intercept": (counts(lambda: 2.0, lambda: uniform() + pm.Normal("b") * pm.Data("x", X)), {"s": None}),
    "a product": (as_it_is(lambda: pm.HalfNormal("s") * (pm.Normal("a") + pm.Data("x", X))), {}),
    "a power of a coefficient": (as_it_is(lambda: pm.Normal("a") + pm.Data("x", X) ** uniform()), {}),
    "a coefficient and a prior": (
        as_it_is(lambda: pm.Normal("b", 0.0, (s := uniform())) + s * pm.Data("x", X)),
        {},
    ),
    "a coefficient and a scale": (
        lambda: pm.Normal("y", pm.Normal("a") + (s := uniform()) * pm.Data("x", X), s, observed=Y),
        {},
    ),
    "a location that is the scale": (lambda: pm.Normal("y", (s := uniform()), s, observed=Y), {}),
    "a coefficient and a potential": (with_potential, {}),
}


def built(name):
    with pm.Model() as model:
        CHANGED[name][0]()
    return model


@pytest.mark.parametrize("name", CHANGED)
def test_scales_and_shapes_are_logarithms_and_coefficients_themselves(name):
    model = built(name)
    form, found = in_coordinates(model), {}
    for rv in form.free_RVs:
        transform = form.rvs_to_transforms[rv]
        if transform is not model.rvs_to_transforms[model[rv.name]]:
            found[rv.name] = transform.power if isinstance(transform, LogarithmOf) else None
            assert isinstance(transform, LogarithmOf | Itself)
    assert found == pytest.approx(CHANGED[name][1])
    assert (form is model) == (not found)


@pytest.mark.parametrize("name", [name for name, (_, changed) in CHANGED.items() if changed])
def test_the_law_is_the_same_with_other_transforms(name):
    """The log-density of the user's variables, free of Jacobians, at the same values."""
    model = built(name)
    form = in_coordinates(model)
    parameters = ParameterVector(form)
    bounds = bounds_of_parameters(form, parameters, parameters.to_theta(form.initial_point(0)))
    point = parameters.to_point(np.clip(0.3 + 0.1 * np.arange(parameters.size), *bounds))
    pairs = [(rv, model.rvs_to_transforms[model[rv.name]]) for rv in form.free_RVs]
    forward = [rv if each is None else each.forward(rv, *rv.owner.inputs) for rv, each in pairs]
    values = form.replace_rvs_by_values(forward)
    moved = pm.compile(form.value_vars, values, mode=INTERPRETED, on_unused_input="ignore")(*point.values())
    of_user = dict(zip([value.name for value in model.value_vars], moved, strict=True))
    densities = [each.compile_logp(jacobian=False, mode=INTERPRETED) for each in (model, form)]
    assert densities[0](of_user) == pytest.approx(densities[1](point), rel=1e-9)
    assert np.isfinite(densities[1](point))


def test_priors_alone_are_written_in_the_coordinates_of_a_likelihood():
    with pm.Model() as priors:
        pm.Uniform("s", 0.0, 9.0)
        pm.HalfNormal("b")
        pm.Gamma("tau", 1.0, 1.0)
    names = ["s_log__", "b_itself__", "tau_log^-0.5__"]
    form = form_of(priors, names)
    assert [value.name for value in form.value_vars] == names
    assert form_of(priors, ["s_log__", "another"]) is priors
    assert form_of(priors, ["s_interval__"]) is priors


def bounded_table():
    random = np.random.default_rng(4)
    x = random.normal(size=(5000, 2))
    return x, 30.0 + x @ [1.0, 0.0] + 4.0 * random.normal(size=5000)


BOUNDED = {
    "a scale": lambda: {"sigma": pm.Uniform("s", 0.0, 50.0)},
    "a precision": lambda: {"tau": pm.Gamma("s", 0.1, 0.1)},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BOUNDED)
def test_a_private_posterior_with_bounds_is_that_without(name):
    """A scale far from its start, and coefficients that are at least zero: one is, one is not."""
    x, y = bounded_table()
    with pm.Model() as model:
        mean = pm.Uniform("a", -100.0, 100.0) + pm.Data("x", x) @ pm.HalfNormal("b", 2.0, shape=2)
        pm.Normal("y", mean, **BOUNDED[name](), observed=y)
    released = dp.private_likelihood(model=model, budget=dp.PrivacyBudget(8.0, 1e-6), insecure_seed=1)
    tree = released.sample(500, chains=2, cores=1, random_seed=1, **QUIET)
    draws = tree["posterior"].to_dataset()
    scale = draws["s"] if name == "a scale" else draws["s"] ** -0.5
    of_rows = 4.0 / np.sqrt(5000)
    assert float(draws["a"].mean()) == pytest.approx(30.0, abs=6.0 * of_rows)
    assert float(scale.mean()) == pytest.approx(4.0, abs=6.0 * of_rows)
    assert float(draws["b"].mean(("chain", "draw"))[0]) == pytest.approx(1.0, abs=6.0 * of_rows)
    assert float(draws["b"].min()) > 0.0
    assert float(draws["b"].mean(("chain", "draw"))[1]) < 5.0 * of_rows
    assert float(tree["sample_stats"]["diverging"].mean()) < 0.01
    own = released.model()
    with own:
        again = pm.sample(300, tune=500, chains=2, cores=1, random_seed=1, **QUIET)
    for place in range(2):
        both = [each["posterior"]["b"].values[..., place] for each in (tree, again)]
        assert abs(both[0].mean() - both[1].mean()) < 0.5 * both[0].std()
    with pm.Model() as others:
        pm.Normal("a", 0.0, 100.0, transform=None)
        pm.TruncatedNormal("b", 0.0, 2.0, lower=0.0, shape=2)
        pm.HalfNormal("s", 9.0)
    changed = released.sample(300, priors=others, chains=2, cores=1, random_seed=1, **QUIET)["posterior"]
    assert float(changed["b"].min()) > 0.0


def test_the_default_sampler_alone_has_the_coordinates_of_the_likelihood():
    """Settings of others are on PyMC's unconstrained scale."""
    with built("a coefficient") as model:
        budget = dp.PrivacyBudget(1.0, 1e-6)
        settings = {"clip_gradient": 1.0, "clip_log_ratio": 1.0, "step_size": 0.1, "prelude": None, "budget": budget}
        one, another = dp.DPSurrogateHMC(budget=budget), dp.DPHMC(**settings)
    assert {"s_itself__", "s_interval__"} == {*one.parameters.names} ^ {*another.parameters.names}
    assert one.form_of(model) is in_coordinates(model)
    assert another.form_of(model) is model


def test_a_form_in_coordinates_is_made_of_the_centred_one_and_of_a_model_as_it_is_now():
    model = written(intercepts)
    with model:
        pm.Normal("another", pm.Uniform("s", 0.0, 9.0) * pm.Data("of_x", X), 1.0, observed=Y)
    assert in_coordinates(model) is centred(model)  # of two outcomes nothing is read
    model = built("a scale")
    form = in_coordinates(model)
    assert in_coordinates(model) is form
    assert centred(model) is model
    model.rvs_to_transforms[model["s"]] = None
    assert in_coordinates(model) is model
    assert as_written(form) is model
