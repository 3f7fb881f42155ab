"""One folder reads models: whatever else asks a model for an attribute could accept what is refused there.

`.importlinter` says which modules import PyMC. A model that is handed on can be read without any import, which only its
attributes show.
"""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1] / "pymc_dp"
#: Attributes of models that nothing else has.
OF_MODELS = {
    *("basic_RVs", "free_RVs", "observed_RVs", "unobserved_RVs", "value_vars", "unobserved_value_vars"),
    *("rvs_to_values", "values_to_rvs", "rvs_to_transforms", "rvs_to_initial_values", "replace_rvs_by_values"),
    *("deterministics", "potentials", "named_vars", "named_vars_to_dims", "dim_lengths", "eval_rv_shapes"),
    *("initial_point", "compile_fn", "compile_logp", "compile_dlogp", "compile_d2logp", "point_logps", "name_for"),
    *("logp", "dlogp", "d2logp", "logp_dlogp_function", "get_context", "add_coord", "set_initval"),
}
#: Others that models have, and trees of results too: looked for where something is called a model.
OF_OTHERS = {"coords", "data_vars", "parent", "root", "dims", "name", "tag", "register_rv", "register_data_var"}


def readings_of(path):
    """Yield the lines at which a file reads an attribute of a model, or an entry of one."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            if node.attr in OF_MODELS or (node.attr in OF_OTHERS and is_model(node.value)):
                yield f"{path.relative_to(ROOT)}:{node.lineno}: {node.attr}"
        elif isinstance(node, ast.Subscript) and is_model(node.value):
            yield f"{path.relative_to(ROOT)}:{node.lineno}: an entry"
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "vars", "setattr"):
            if is_model(node.args[0]):
                yield f"{path.relative_to(ROOT)}:{node.lineno}: {node.func.id}"


def is_model(node):
    """Return whether an expression is called a model, or a synthetic one."""
    name = getattr(node, "attr", getattr(node, "id", ""))
    return name in ("model", "_model", "synthetic", "twin")


def test_models_are_read_in_one_folder():
    files = [path for path in ROOT.rglob("*.py") if path.relative_to(ROOT).parts[0] != "model"]
    assert len(files) > 100
    wrong = [reading for path in files for reading in readings_of(path)]
    assert not wrong, "\n".join(wrong)


def test_that_a_reading_would_be_seen():
    assert len(list(readings_of(ROOT / "model" / "structure.py"))) > 20
    assert len(list(readings_of(ROOT / "model" / "posterior.py"))) > 3
