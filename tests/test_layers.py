"""Keeps the floors of docs/architecture.md: who may import whom, and where heavy libraries may enter."""

import ast
import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGE = REPOSITORY / "mast_ray"
FLOOR = {
    "config": 1, "boxes": 1,
    "storage": 2, "spectrogram": 2, "recordings": 2, "models": 2, "losses": 2,
    "tables": 3, "soundscapes": 3,
    "training": 4, "self_training": 4, "evaluation": 4,
    "inference": 5,
    "on_ray": 6, "reporting": 6,
    "stages": 7, "verbs": 8,
}  # fmt: skip
ONLY_IN = {
    "ray": ["on_ray/", "stages/"],
    "deepspeed": ["training/engine"],
    "pyarrow": [
        "storage/",
        "tables/",
        "evaluation/",
        "self_training/",
        "training/",
        "inference/",
        "reporting/",
        "on_ray/",
        "stages/",
        "verbs/",
    ],
    "soundfile": ["recordings/", "soundscapes/", "reporting/", "verbs/"],
    "matplotlib": ["reporting/"],
    "jinja2": ["reporting/"],
    "torchaudio": ["spectrogram/"],
    "timm": ["models/"],
}
FORBIDDEN_NAMES = {"utils", "helpers", "common", "misc", "base"}
MODULES = sorted(PACKAGE.rglob("*.py"))


def imported_modules(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def place(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


@pytest.mark.parametrize("path", MODULES, ids=place)
def test_a_room_imports_from_lower_floors_only(path):
    room = place(path).split("/")[0]
    if room not in FLOOR:
        return  # __init__, __main__
    for name in imported_modules(path):
        parts = name.split(".")
        if parts[0] == "mast_ray" and len(parts) > 1 and parts[1] in FLOOR and parts[1] != room:
            assert FLOOR[parts[1]] < FLOOR[room], f"{place(path)} imports {name}: not a lower floor"


@pytest.mark.parametrize("path", MODULES, ids=place)
def test_heavy_libraries_enter_by_their_own_door(path):
    for name in imported_modules(path):
        doors = ONLY_IN.get(name.split(".")[0])
        if doors is not None:
            assert any(place(path).startswith(door) for door in doors), (
                f"{place(path)} imports {name}: only {doors}"
            )


def test_every_room_is_on_a_floor_and_every_file_opens_with_a_sentence():
    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert rooms == set(FLOOR)
    silent = [
        place(path) for path in MODULES if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not silent
    assert not [place(path) for path in MODULES if path.stem in FORBIDDEN_NAMES]


def test_no_module_is_longer_than_400_lines():
    assert not [place(path) for path in MODULES if len(path.read_text(encoding="utf-8").splitlines()) > 400]


def test_config_imports_without_torch():
    import subprocess
    import sys

    code = "import sys, mast_ray.config.recipes as r; r.tiny(); sys.exit('torch' in sys.modules or 'ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY).returncode == 0


def test_loading_is_never_unsafe():
    unsafe = re.compile(
        r"yaml\.(unsafe_)?load\(|pickle\.loads?\(|weights_only=False|shell=True|torch\.load\((?!.*weights_only=True)"
    )
    found = [
        f"{path.relative_to(REPOSITORY)}:{number}"
        for folder in ("mast_ray", "jobs", "benchmarks")
        for path in (REPOSITORY / folder).rglob("*.py")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if unsafe.search(line)
    ]
    assert not found
