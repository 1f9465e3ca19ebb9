"""The `mast` command: finds the verb, builds its config, runs it, and turns errors
into three lines and an exit code.

Verb modules are imported only when called, so `mast --help` answers at once and no
verb pays for another's imports.
"""

from __future__ import annotations

import argparse
import atexit
import difflib
import importlib
import io
import os
import re
import select
import signal
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NoReturn

from mast_ray import __version__
from mast_ray.config.chatter import chatter_apart, chatter_file
from mast_ray.config.errors import CONFIG, DATA, INTERRUPTED, TEMPORARY, ConfigError, MastError
from mast_ray.config.shown import guard_logs, shown
from mast_ray.config.signals import interruptible
from mast_ray.verbs.gpu import folder_of_model
from mast_ray.verbs.idle_options import typed_options

# Threads of a matrix product that wait for each other sleep instead of spinning: on a machine that does other work
# too, spinning makes two threads five times as slow as one. Read when torch is first imported, here and in Ray's workers.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

VERBS: dict[str, tuple[str, str]] = {
    # verb: (module, one line of help), in the order a newcomer meets them
    "config": ("config", "print a recipe with every knob explained"),
    "synth": ("synth", "make a labelled synthetic soundscape archive"),
    "show": ("show", "draw a recording's spectrogram with boxes; what a model began with"),
    "inventory": ("inventory", "what is in an archive, before any work"),
    "prepare": ("prepare", "archive of recordings -> tables of log-mel frames and labels"),
    "split": ("split", "deal recordings into train, validation, test and pool again"),
    "pretrain": ("pretrain", "masked pretraining on the unlabelled pool"),
    "train": ("train", "train a detector on expert boxes"),
    "pseudo-label": ("pseudo_label", "run a detector over the pool"),
    "self-train": ("self_train", "rounds of pseudo-labels, stage 1 and stage 2"),
    "tune": ("tune", "search thresholds and loss weights"),
    "evaluate": ("evaluate", "score detections against annotations"),
    "compare": ("compare", "train and score several methods side by side"),
    "label-budget": ("label_budget", "how many labels are enough, and which to draw next"),
    "embed": ("embed", "embeddings, neighbours, clusters and maps"),
    "classify": ("classify", "names for boxes, learned from the labels of the training boxes"),
    "calibrate": ("calibrate", "precision at a threshold from a small review sheet"),
    "detect": ("detect", "boxes for every recording of an archive"),
    "listen": ("listen", "a first look: the shipped detector over your recordings, and a report"),
    "learn": ("learn", "a better detector and better names from corrections"),
    "export": ("export", "detections -> Raven, Audacity, CSV, AOEF, COCO, Kaleidoscope, pamDP"),
    "summarise": ("summarise", "calls per hour, diel activity, spectral occupancy"),
    "report": ("report", "one HTML file to look at and listen to"),
    "review": ("review", "look, listen and correct boxes in the browser"),
    "advise-upsampling": ("advise_upsampling", "the adapter ratio that fits your own boxes"),
    "plan": ("plan", "hours, GPU-hours and storage before spending a cent"),
    "doctor": ("doctor", "check Python, GPU, Ray, S3, clock and disk"),
    "run": ("run", "the whole pipeline on your own data"),
    "demo": ("demo", "the whole pipeline on synthetic sound, in minutes"),
}


def main(argv: list[str] | None = None) -> int:
    """Entry point of `mast`."""
    if argv is None:
        _show_any_letter()
        return _leave(main(sys.argv[1:]))
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(
            f"mast {__version__}: detectors of animal sounds in time and frequency\n\nusage: mast VERB [...]\n"
        )
        print("\n".join(f"  {verb:<18} {text}" for verb, (_, text) in VERBS.items()))
        print(
            "\n`mast VERB --help` explains a verb; exit codes: 0 done, 2 configuration, 3 data, 4 some recordings"
        )
        print(
            "quarantined, 5 output in use by another run, 6 training diverged, 75 temporary, 130 interrupted."
        )
        return 0
    if argv[0] in ("-V", "--version"):
        print(f"mast {__version__}")
        return 0
    if argv[0] not in VERBS:
        close = difflib.get_close_matches(argv[0], VERBS, n=1)
        hint = f"did you mean `mast {close[0]}`?" if close else "`mast --help` lists the verbs"
        print(f"error: there is no verb {argv[0]!r}: {hint}", file=sys.stderr)
        return CONFIG
    return run_verb(argv[0], argv[1:])


class _Parser(argparse.ArgumentParser):
    """Refuses wrong arguments like any other mistake, without a page of usage."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}\n`{self.prog} --help` explains its arguments")


def run_verb(verb: str, argv: list[str] | None = None) -> int:
    """Run one verb with its arguments; errors become messages and exit codes."""
    if argv is None:
        _show_any_letter()
        return _leave(run_verb(verb, sys.argv[1:]))
    if "--debug" in argv or os.environ.get("MAST_DEBUG"):
        return _run(verb, argv, debug=True)
    with chatter_apart():
        return _run(verb, argv, debug=False)


def _show_any_letter() -> None:
    """Names of sites hold letters that a terminal or a log of another encoding (Latin-1) does not have: they are shown by
    their number there, as Python does on stderr.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _leave(code: int) -> NoReturn:
    """End the process with this exit code once the Python part of it is over: threads of libraries that the interpreter's own
    end meets halfway would abort it ("terminate called without an active exception", -6), and with it the code. What was
    interrupted inside Ray is left at once, as its threads wait for a cluster that is gone.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # one that comes late would change the code too
    if code not in (INTERRUPTED, TEMPORARY) or "ray" not in sys.modules:
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # whoever read it may be gone
            stream.flush()
    os._exit(code)


def _run(verb: str, argv: list[str], debug: bool) -> int:
    try:
        # from the first import on: it takes seconds, and a scheduler does not wait
        with interruptible(), ExitStack() as held:
            module, args = _asked(verb, argv, held)
            guard_logs()
            return module.run(args)
    except MastError as error:
        if debug:
            raise
        _say(f"error: {shown(error)}")
        return error.exit_code
    except KeyboardInterrupt:
        return _report_interruption()
    except SystemExit as stop:
        if stop.code == signal.SIGTERM:  # Ray's own handler, while Ray was starting
            return _report_interruption()
        raise
    except OSError as error:
        if debug:
            raise
        return _report_os_error(error)
    except Exception:
        if said := chatter_file():
            print(f"what libraries said of it: {said}", file=sys.stderr)
        raise


def parser_of(verb: str) -> tuple[Any, argparse.ArgumentParser]:
    """The module of a verb, and all that it can be told."""
    module_name, text = VERBS[verb]
    module = importlib.import_module(f"mast_ray.verbs.{module_name}")
    parser = _Parser(
        prog=f"mast {verb}",
        description=getattr(module, "HELP", text),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    if getattr(module, "USES_CONFIG", False):
        parser.add_argument("--recipe", default=None, help="field (default), paper, tiny or birdeep")
        parser.add_argument("--config", dest="config_file", default=None, help="YAML record of a run")
        parser.add_argument("--set", dest="sets", action="append", default=[], metavar="KEY=VALUE",
                            help="change one knob; repeatable (`mast config` lists them)")  # fmt: skip
    if getattr(module, "READS_BUCKETS", False):
        parser.add_argument("--set", dest="sets", action="append", default=[], metavar="KEY=VALUE",
                            help="storage.endpoint_url=URL or storage.region=NAME, of a bucket that is not Amazon's")  # fmt: skip
    if getattr(module, "USES_RUNNER", False):
        names = ("auto", "ray", "here") if hasattr(module, "runner_for") else ("ray", "here")
        by_size = "; auto, the default: small archives stay" if "auto" in names else "; default ray"
        parser.add_argument("--runner", choices=names, default=names[0],
                            help=f"spread the work over Ray, or stay in this process (here){by_size}")  # fmt: skip
    module.add_arguments(parser)
    return module, parser


def _asked(verb: str, argv: list[str], held: ExitStack | None = None) -> tuple[Any, argparse.Namespace]:
    """The module of a verb, and what it is to do; `held` is what it may open for all of its time."""
    module, parser = parser_of(verb)
    args = parser.parse_args(argv)
    args.typed = typed_options(parser, argv)
    _refuse_buckets(verb, args)
    args.held = held or ExitStack()
    if getattr(module, "USES_CONFIG", False):
        args.config = config_of(args.recipe, args.config_file, args.sets)
    if getattr(module, "READS_BUCKETS", False):
        _name_bucket(args.sets)
    if getattr(module, "USES_RUNNER", False):
        args.runner = runner_named(module.runner_for(args) if args.runner == "auto" else args.runner)
    for name in getattr(module, "READS_MODELS", ()):
        given = getattr(args, name)
        folders = [folder_of_model(one, args) for one in (given if isinstance(given, list) else [given])]
        setattr(args, name, folders if isinstance(given, list) else folders[0])
    return module, args


def _refuse_buckets(verb: str, args: argparse.Namespace) -> None:
    """An address that is taken for a path would be a folder called s3: here."""
    for name, value in vars(args).items():
        if isinstance(value, Path) and value.parts[:1] in (("s3:",), ("http:",), ("https:",)):
            raise ConfigError(
                f"{name} of `mast {verb}` is a file or folder of this machine, not in a bucket "
                f"({str(value).replace(':/', '://', 1)}):\ncopy it from or to there, e.g. with `aws s3 cp`"
            )


BUCKET_VARIABLES = {"storage.endpoint_url": "AWS_ENDPOINT_URL", "storage.region": "AWS_DEFAULT_REGION"}


def _name_bucket(sets: list[str]) -> None:
    """Whose bucket it is, for verbs that have no other settings: where everything that opens one looks."""
    from mast_ray.config.loading import parse_set

    for key, value in parse_set(sets).items():
        if key not in BUCKET_VARIABLES:
            raise ConfigError(f"--set {key}: this verb knows {' and '.join(BUCKET_VARIABLES)} alone")
        os.environ[BUCKET_VARIABLES[key]] = str(value)


def _say(text: str) -> None:
    """An error, with the file of what libraries said, which may explain it."""
    said = chatter_file()
    print(f"{text} (what libraries said: {said})" if said else text, file=sys.stderr)


def _report_interruption() -> int:
    print("interrupted: run the same command again to go on where it was", file=sys.stderr)
    return INTERRUPTED


def _report_os_error(error: OSError) -> int:
    import errno

    where = f" {shown(error.filename)}" if error.filename else ""
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            _say(f"error: no space left on the disk of{where or ' the output'}:\nfree some and run again")
            return TEMPORARY
        case errno.EACCES | errno.EPERM | errno.EROFS:
            _say(f"error: no permission for{where}: choose a folder you may write to")
            return DATA
        case errno.EPIPE if _is_stdout_gone():
            return TEMPORARY  # `mast ... | head`: there is nobody to tell
        case errno.EEXIST:  # where a folder is to be made
            _say(f"error:{where or ' the output'} is a file, not a folder: choose another path")
            return DATA
        case errno.ENOENT if str(error.strerror).startswith("No usable temporary directory"):  # all are full
            _say(
                f"error: {error.strerror}:\nfree some there, or set TMPDIR to a folder with room, and run again"
            )
            return TEMPORARY
        case errno.ENOENT | errno.ENOTDIR | errno.EISDIR:
            _say(f"error:{where or ' path'}: {error.strerror}: check the path")
            return DATA
        case _:
            _say(f"error: {shown(error)}\nrun again with --debug for the traceback")
            return TEMPORARY


def _is_stdout_gone() -> bool:
    try:
        print(end="", flush=True)
        asked = select.poll()  # unbuffered (PYTHONUNBUFFERED), nothing is left that could be written again
        asked.register(sys.stdout.fileno(), 0)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in asked.poll(0))
    except BrokenPipeError:
        return True
    except (AttributeError, OSError, ValueError):  # no pipe, or a system that cannot be asked
        return False


def runner_named(name: str):
    """The value behind --runner."""
    from mast_ray.stages.runner import RUNNERS

    return RUNNERS[name]


def config_of(recipe: str | None, config_file: str | None, sets: list[str]):
    """Recipe, then YAML file, then --set, each over the one before."""
    from mast_ray.config.loading import apply_overrides, config_from_yaml, parse_set
    from mast_ray.config.recipes import RECIPES

    if recipe is not None and recipe not in RECIPES:
        raise ConfigError(f"there is no recipe {recipe!r}: choose from {', '.join(RECIPES)}")
    config = RECIPES[recipe or "field"]()
    if config_file:
        try:
            text = Path(config_file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            # its path may hold keys, cut so that nobody sees it
            why = error.strerror if isinstance(error, OSError) else error
            raise ConfigError(f"--config {config_file} cannot be read: {why}") from error
        named = re.search(r"^recipe:\s*(\w+)", text, re.MULTILINE)
        if recipe is None and named and named[1] in RECIPES:
            config = RECIPES[named[1]]()  # a file with a few keys starts from the recipe it names
        config = config_from_yaml(text, config_file, config)
    return apply_overrides(config, parse_set(sets))


if __name__ == "__main__":
    sys.exit(main())
