"""Every command in README and docs: its options exist, a test or CI runs its verb, or the page
says that it needs a cluster or a GPU.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from mast_ray.verbs.main import VERBS, parser_of

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROGRAMS = ("mast", "make", "python", "ray", "open", "export")
ELSEWHERE = re.compile(r"\[(here|cluster|gpu|aws|kubernetes)\]|needs a (cluster|GPU)|H200", re.IGNORECASE)


def fenced(page):
    """(heading, command) of every line in code fences that begins with a
    program; continued lines are joined.
    """
    heading, inside, found = "", False, []
    for line in page.read_text().replace("\\\n", " ").splitlines():
        if line.strip().startswith("```"):  # a fence within a list is indented
            inside = not inside
        elif line.startswith("#") and not inside:
            heading = line
        elif inside and line.split()[:1] and line.split()[0] in PROGRAMS:
            found.append((heading, line.strip()))
    return found


def commands():
    """(page, where it stands, command) of all fenced lines and of inline code that is a whole command."""
    found = []
    for page in PAGES:
        text = page.read_text()
        found += [(page.name, f"{heading} {line}", line) for heading, line in fenced(page)]
        for line in text.splitlines():
            for code in re.findall(r"`((?:mast|make|python benchmarks/)[^`]*)`", line):
                found.append((page.name, line, code))
    return found


def words(command):
    return shlex.split(re.sub(r"\s#\s.*$", "", command).replace("...", ""))


def options_of(verb):
    return {*parser_of(verb)[1]._option_string_actions}


def test_there_are_commands_to_check():
    assert len(commands()) > 60
    assert sum(command.startswith("mast ") for _, _, command in commands()) > 20


@pytest.mark.parametrize("page, where, command", commands(), ids=lambda value: value[:40])
def test_programs_verbs_and_options_exist(page, where, command):
    program, *rest = words(command)
    options = {word.split("=")[0] for word in rest if word.startswith("--")}
    match program:
        case "mast":
            if not rest or rest[0] == "VERB":
                return
            if rest[0].startswith("--"):  # mast --help
                return
            assert rest[0] in VERBS, f"{page}: there is no verb {rest[0]}"
            assert options <= options_of(rest[0]), f"{page}: {command}"
        case "make":
            targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
            assert rest[0] in targets
        case "python":
            assert (ROOT / rest[0]).is_file(), f"{page}: {rest[0]}"
            source = (ROOT / rest[0]).read_text()
            if rest[0].startswith("benchmarks/"):
                assert all(f'"{option}"' in source for option in options), f"{page}: {command}"
        case "ray":
            assert ELSEWHERE.search(where), f"{page} does not say what this needs: {command}"


@pytest.mark.parametrize("verb", VERBS)
def test_what_the_help_of_a_verb_names_exists(verb):
    text = " ".join(parser_of(verb)[1].format_help().split())
    for other, rest in re.findall(r"\bmast ([a-z-]+)((?: (?:[A-Z]+|--[a-z-]+|[a-z]+[/:.][\w./:]*))*)", text):
        if other in VERBS:
            assert {*re.findall(r"--[a-z-]+", rest)} <= options_of(other), f"mast {other}{rest}"
    assert ("auto" in text.partition("--runner")[2][:200]) <= ("auto,ray,here" in text)


def test_a_whole_command_in_a_help_text_has_every_argument_it_needs():
    """Commands that end with an output are meant to be typed as they stand."""
    for verb in ("pretrain", "train", "self-train"):
        described = parser_of(verb)[1].description
        whole = re.findall(r"`mast ([a-z-]+) ([^`]*--out DIR)`", described)
        assert whole
        for other, rest in whole:
            parser_of(other)[1].parse_args(shlex.split(rest))  # raises ConfigError where one is missing


def test_every_verb_is_run_by_a_test():
    sources = "\n".join(
        path.read_text() for path in (ROOT / "tests").rglob("test_*.py") if path.name != Path(__file__).name
    )
    sources += (ROOT / "mast_ray/verbs/run.py").read_text()  # run by the test of the five lines below
    unrun = [verb for verb in VERBS if f'"{verb}"' not in sources]
    assert not unrun


def test_ci_runs_lint_the_quick_tests_and_those_that_start_services():
    ci = (ROOT / ".ci/run").read_text()
    for target in ("lint", "test", "test-services"):
        assert f"make {target}" in ci


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.long
def test_the_five_lines_for_your_own_sound_run_as_printed(tmp_path):
    lines = [line for heading, line in fenced(ROOT / "README.md") if "Your own sound" in heading]
    assert [words(line)[0] for line in lines] == ["mast", "mast", "open", "mast", "mast"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}

    def mast(*argv):
        command = [sys.executable, "-m", "mast_ray", *argv]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

    synth = ("--hours", "0.15", "--sites", "2", "--days", "2", "--labelled-share", "0.6", "--density", "24")
    mast("synth", "--out", "made", *synth)
    (tmp_path / "made/audio").rename(tmp_path / "recordings")
    (tmp_path / "made/annotations").rename(tmp_path / "raven_tables")
    (tmp_path / "another_archive").mkdir()
    first = sorted((tmp_path / "recordings").rglob("*.wav"))[0]
    (tmp_path / "another_archive" / first.name).write_bytes(first.read_bytes())
    for line in lines:
        program, *argv = words(line)
        if program == "open":
            assert "<html" in (tmp_path / argv[0]).read_text()[:500].lower()
        else:
            mast(*argv)
    assert list((tmp_path / "tables").rglob("*.txt"))


def test_every_verb_can_be_submitted_as_a_job_but_the_one_that_serves_a_browser():
    called = re.compile(r'run_verb\("([a-z-]+)"\)')
    jobs = [
        verb for path in sorted((ROOT / "jobs").glob("*.py")) for verb in called.findall(path.read_text())
    ]
    assert sorted(jobs) == sorted(VERBS.keys() - {"review"})
