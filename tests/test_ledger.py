"""docs/math.md is complete: it lists every function that names an equation, and everything it names exists."""

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = [f"solver.{name}" for name in ("embedding", "steps", "loop", "clustering", "model", "start", "proposals")]


def ledger():
    """The rows of the ledger: tag, paper, formula, function, test, deviation."""
    text = (ROOT / "docs/math.md").read_text().split("## Ledger")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return rows[2:]


def tagged_functions():
    """module.name of every function and class whose docstring names an equation, and the equation."""
    for module in MODULES:
        tree = ast.parse((ROOT / "src/bitmosaic" / f"{module.replace('.', '/')}.py").read_text())
        for scope in (tree, *(node for node in tree.body if isinstance(node, ast.ClassDef))):
            for node in scope.body:
                if isinstance(node, ast.FunctionDef | ast.ClassDef):
                    tag = re.search(r"\[(eq\. [\d, -]+\d)", ast.get_docstring(node) or "")
                    if tag:
                        prefix = f"{scope.name}." if isinstance(scope, ast.ClassDef) else ""
                        yield f"{module.split('.')[-1]}.{prefix}{node.name}", tag[1]


@pytest.mark.parametrize(("function", "equation"), list(tagged_functions()))
def test_every_function_that_names_an_equation_is_in_the_ledger(function, equation):
    rows = [row for row in ledger() if row[3] == f"`{function}`"]
    assert rows, f"{function} names {equation} and is not in docs/math.md"
    assert function == "model.Model.assign" or any(equation in row[1] for row in rows)


@pytest.mark.parametrize("row", ledger(), ids=lambda row: row[0])
def test_what_the_ledger_names_exists(row):
    tag, paper, formula, function, test, deviation = row
    assert tag
    assert formula
    assert paper
    module, *names = function.strip("`").split(".")
    thing = import_module(next(f"bitmosaic.{m}" for m in MODULES if m.split(".")[-1] == module))
    for name in names:
        thing = getattr(thing, name)
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert f"def {test.strip('`')}(" in tests
    if deviation:
        assert f"\n{deviation}. " in (ROOT / "docs/math.md").read_text().split("## Deviations")[1]


def test_every_equation_of_the_algorithm_is_in_the_ledger():
    papers = " ".join(row[1] for row in ledger())
    for equation in ("9", "12", "13", "18", "20", "21", "25", "28"):
        assert re.search(rf"\b{equation}\b", papers), f"eq. {equation} is missing"
