"""What the documentation says of the structure is so: files and methods exist, one method adds noise, no cycles."""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
LIST = re.findall(r"^\| `(pymc_dp/[\w/]+\.py)` \| (.+) \|$", PAGE, re.MULTILINE)


def files_in(text):
    return re.findall(r"`(pymc_dp/[\w/]+\.py)`", text)


def section(path, heading):
    """Return the text below a heading."""
    text = (ROOT / path).read_text()
    assert heading in text
    return text.split(heading, 1)[1].split("\n## ", 1)[0]


def test_the_files_that_a_reviewer_reads_exist():
    assert LIST
    wrong = [path for path, _ in LIST if not (ROOT / path).is_file()]
    assert not wrong, "\n".join(wrong)


def test_the_reviewers_page_leads_to_files_of_the_list_and_says_how_many_there_are():
    page = (ROOT / "docs" / "howto" / "review.md").read_text()
    assert files_in(page)
    assert set(files_in(page)) <= {file for file, _ in LIST}
    of_every_run = files_in(section("docs/architecture.md", "Of every run:").split("Where a table stands", 1)[0])
    assert f"{len(LIST)} files. {len(of_every_run)} of\nthem take part in every run" in page


def test_every_file_that_the_page_names_exists():
    named = re.findall(r"`((?:pymc_dp|docs|tests|tools)/[\w/]+\.\w+)`", PAGE)
    picture = PAGE.split("```text", 1)[1].split("```", 1)[0]
    named += [f"pymc_dp/{name}" for name in re.findall(r"\b((?:\w+/)*\w+\.py)\b", picture)]
    wrong = [name for name in named if not (ROOT / name).is_file()]
    assert not wrong, "\n".join(wrong)


def test_every_file_that_contributors_are_led_to_exists():
    named = re.findall(r"`([\w./]*\w\.(?:py|md|toml))`", (ROOT / "CONTRIBUTING.md").read_text())
    there = [
        str(path)
        for folder in ("pymc_dp", "tests", "tools", "benchmarks", "docs")
        for path in (ROOT / folder).rglob("*.*")
    ]
    wrong = [
        name for name in named if not ((ROOT / name).is_file() or any(path.endswith(f"/{name}") for path in there))
    ]
    assert named
    assert not wrong, "\n".join(wrong)


def test_the_curators_docstring_names_a_method_that_exists():
    module = ast.parse((ROOT / "pymc_dp" / "release" / "curator.py").read_text())
    (curator,) = (node for node in module.body if isinstance(node, ast.ClassDef) and node.name == "MeteredCurator")
    methods = {node.name for node in curator.body if isinstance(node, ast.FunctionDef)}
    named = re.findall(r"`MeteredCurator\.(\w+)`", ast.get_docstring(module) + PAGE)
    wrong = sorted(set(named) - methods)
    assert not wrong, "\n".join(wrong)


@cache
def nodes_of(path):
    """Return all nodes of the tree of a module."""
    return list(ast.walk(ast.parse(path.read_text())))


def test_a_reviewer_reads_every_kind_of_release():
    queries = nodes_of(ROOT / "pymc_dp" / "release" / "queries.py")
    (answered,) = (node.value for node in queries if isinstance(node, ast.AnnAssign) and node.target.id == "QUERIES")
    names = {node.id for node in ast.walk(answered) if isinstance(node, ast.Name)}
    imports = (node for node in queries if isinstance(node, ast.ImportFrom))
    modules = {node.module for node in imports if names & {each.name for each in node.names}}
    wrong = {f"{module.replace('.', '/')}.py" for module in modules} - {file for file, _ in LIST}
    assert len(modules) > 3
    assert not wrong, f"not in the reviewers' list of docs/architecture.md: {wrong}"


def test_every_sampler_is_where_readers_and_tests_look_for_samplers():
    samplers = re.findall(r'^    "(DP\w+)",$', (ROOT / "pymc_dp" / "steps" / "__init__.py").read_text(), re.MULTILINE)
    pages = [f"docs/{name}.md" for name in ("api", "samplers", "learned_settings")]
    pages += ["tools/fuzz.py", "notebooks/samplers.py", "tests/steps/test_signatures.py"]
    texts = {page: (ROOT / page).read_text() for page in pages}
    assert samplers
    wrong = [
        f"{page}: {name}" for page, text in texts.items() for name in samplers if not re.search(rf"\b{name}\b", text)
    ]
    assert not wrong, "\n".join(wrong)


ONCE = {("_noise", "add"), ("_meter", "spend")}


def test_only_one_method_adds_noise_and_only_one_pays():
    """A release kind cannot forget either: both stand once, in the curator."""
    called = []
    for path in (ROOT / "pymc_dp").rglob("*.py"):
        for node in nodes_of(path):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                of = node.func.value
                if isinstance(of, ast.Attribute) and (of.attr, node.func.attr) in ONCE:
                    called.append((path.name, of.attr))
    assert sorted(called) == [("curator.py", "_meter"), ("curator.py", "_noise")]


def imports_of(path):
    """Return the package's modules that a module imports, those for type checkers included."""
    for node in nodes_of(path):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pymc_dp"):
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name.startswith("pymc_dp"))


def test_no_modules_import_each_other():
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path
        for path in (ROOT / "pymc_dp").rglob("*.py")
        if path.name != "__init__.py"
    }
    graph = {name: {each for each in imports_of(path) if each in modules} for name, path in modules.items()}

    def reached(name):
        found, todo = set(), [name]
        while todo:
            for each in graph[todo.pop()] - found:
                found.add(each)
                todo.append(each)
        return found

    wrong = [name for name in modules if name in reached(name)]
    assert not wrong, "\n".join(wrong)
