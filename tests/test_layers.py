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
    "ray": ["on_ray/"],
    "optuna": ["on_ray/"],
    "deepspeed": ["training/deepspeed_engine.py"],
    "botocore": ["storage/"],
    "s3fs": ["storage/"],
    "pyarrow": [f"{room}/" for room, floor in FLOOR.items() if room == "storage" or floor >= 3],
    "soundfile": ["recordings/", "soundscapes/", "reporting/", "verbs/"],
    "matplotlib": ["reporting/"],
    "jinja2": ["reporting/"],
    "torchaudio": ["spectrogram/"],
    "timm": ["models/"],
}
FORBIDDEN_NAMES = {"utils", "helpers", "common", "misc", "base"}
MODULES = sorted(PACKAGE.rglob("*.py"))
NAMES = {
    ".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__") for path in MODULES
}
ROOMS = {name for name in NAMES if any(other.startswith(f"{name}.") for other in NAMES)}


def imported_modules(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def own_modules(path: Path) -> set[str]:
    """The modules of this package that a module imports, also inside its functions. The room of a module is not
    among them: an `__init__` holds a sentence and no import, which another test asks for.
    """
    return {name for name in imported_modules(path) if name in NAMES - ROOMS}


def circles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that all lead to each other (Tarjan's strongly connected components of more than one)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found = []

    def visit(name: str) -> None:
        number[name] = lowest[name] = len(number)
        path.append(name)
        for other in sorted(arrows.get(name, ())):
            if other not in number:
                visit(other)
            if other in path:
                lowest[name] = min(lowest[name], lowest[other])
        if lowest[name] == number[name]:
            start = path.index(name)
            group = path[start:]
            del path[start:]
            if len(group) > 1 or name in arrows.get(name, ()):
                found.append(sorted(group))

    for name in sorted(arrows):
        if name not in number:
            visit(name)
    return found


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


def test_circles_are_found_where_they_are():
    assert circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"d", "b"}, "d": {"e"}, "e": {"d"}}) == [
        ["d", "e"],
        ["b", "c"],
    ]
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"d"}}) == [["a", "b", "c"], ["d"]]


def test_no_module_leads_back_to_itself():
    names = {path: ".".join(path.relative_to(REPOSITORY).with_suffix("").parts) for path in MODULES}
    assert circles({name.removesuffix(".__init__"): own_modules(path) for path, name in names.items()}) == []


def test_the_init_of_a_room_imports_nothing():
    assert not [place(path) for path in MODULES if path.name == "__init__.py" and imported_modules(path)]


def test_every_room_is_on_a_floor_and_every_file_opens_with_a_sentence():
    rooms = {
        path.name
        for path in PACKAGE.iterdir()
        if path.is_dir() and path.name not in ("__pycache__", "weights")
    }  # weights/ holds data
    assert rooms == set(FLOOR)
    silent = [
        place(path) for path in MODULES if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not silent
    assert not [place(path) for path in MODULES if path.stem in FORBIDDEN_NAMES]


def test_no_room_but_the_verbs_has_more_than_15_files_at_one_level():
    """A verb is a module, so that its name leads to its file: their number is the number of verbs."""
    folders = {path.parent for path in MODULES} - {PACKAGE / "verbs"}
    sizes = {
        place(folder): sum(path.name != "__init__.py" for path in folder.glob("*.py")) for folder in folders
    }
    assert not {folder: size for folder, size in sizes.items() if size > 15}


def test_no_module_is_longer_than_400_lines():
    assert not [place(path) for path in MODULES if len(path.read_text(encoding="utf-8").splitlines()) > 400]


def test_no_two_test_files_have_one_name():
    """pytest imports them by name: the second would not be collected with the first."""
    names = [path.name for path in (REPOSITORY / "tests").rglob("test_*.py")]
    assert not {name for name in names if names.count(name) > 1}


def test_config_imports_without_torch():
    import subprocess
    import sys

    code = "import sys, mast_ray.config.recipes as r; r.tiny(); sys.exit('torch' in sys.modules or 'ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY).returncode == 0


LENGTHS = {"FRAME_SHIFT_S", "HOP_S"}  # of a frame, and between two chunks
PLAIN_LENGTHS = {0.01, 100, 5.12, 10.24}


def translations(path: Path) -> list[int]:
    """Lines that multiply or divide by the length of a frame or a hop, by its name or as a number beside something
    in frames or seconds.
    """
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        sides: tuple[ast.expr, ...] = ()
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div | ast.FloorDiv):
            sides = (node.left, node.right)
        elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Mult | ast.Div | ast.FloorDiv):
            sides = (node.target, node.value)
        names = {n.id if isinstance(n, ast.Name) else n.attr
                 for side in sides for n in ast.walk(side) if isinstance(n, ast.Name | ast.Attribute)}  # fmt: skip
        own = {side.id for side in sides if isinstance(side, ast.Name)}
        numbers = {side.value for side in sides if isinstance(side, ast.Constant)}
        in_time = any("frame" in name or name.endswith("_s") for name in names)
        if own & LENGTHS or numbers & {5.12, 10.24} or (in_time and numbers & PLAIN_LENGTHS):
            found.append(node.lineno)
    return sorted(found)


def test_translations_are_seen_where_they_are(tmp_path):
    path = tmp_path / "module.py"
    lines = [
        "a = x.begin_s / 0.01",
        "b = num_frames * 0.01",
        "c = k * HOP_S",
        "d /= FRAME_SHIFT_S",
        "e = hours / 5.12",
    ]
    path.write_text("\n".join([*lines, "f = 100 * share", "g = begin_s + HOP_S", "h = 0.01 * loudest"]))
    assert translations(path) == [1, 2, 3, 4, 5]


def test_only_the_grid_translates_between_seconds_and_frames():
    found = {place(path): translations(path) for path in MODULES if place(path) != "spectrogram/grid.py"}
    assert not {name: lines for name, lines in found.items() if lines}


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
