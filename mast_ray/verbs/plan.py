"""`mast plan`: hours, GPU-hours and storage of every stage for N GPUs, and what
limits each, before spending a cent.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import fields, replace

from mast_ray.config.errors import ConfigError
from mast_ray.storage.storage import open_beside
from mast_ray.tables.assumed_rates import Rates, gpu_rates
from mast_ray.tables.planning import Archive, Hardware, StagePlan, plan_stages
from mast_ray.verbs.idle_options import refuse_idle

HELP = """Arithmetic from an inventory and measured rates.

  mast plan --hours 661.7 --recordings 4000 --gigabytes 229 --labelled-hours 24 --gpus 8
  mast plan --inventory inventory.json --gpus 64 --gpu-scale 0.4     (an A100 has about 0.4 of an H200's bf16 rate)
  mast plan --hours 661.7 --labelled-hours 24 --gpus 8 --gpu-scale 0.4 --price 4.10"""
USES_CONFIG = True
MOST = 1e12  # of anything: more is a slip of the keyboard
MOST_BYTES = 1e21


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--inventory", help="JSON written by `mast inventory --json`")
    parser.add_argument("--hours", type=float, help="hours of audio")
    parser.add_argument("--recordings", type=int, default=0, help="number of recordings")
    parser.add_argument("--gigabytes", type=float, default=0.0, help="size of the audio")
    parser.add_argument("--labelled-hours", type=float, default=0.0, help="hours with expert boxes")
    parser.add_argument("--gpus", type=int, default=1, help="GPUs")
    parser.add_argument("--cores-per-gpu", type=int, default=12, help="CPU cores per GPU")
    parser.add_argument("--gpu-scale", type=float, default=1.0, help="your GPU's bf16 rate over an H200's")
    parser.add_argument(
        "--price",
        type=float,
        default=0.0,
        metavar="P",
        help="what a GPU with its cores costs per hour, in your money: every stage says what it costs",
    )
    parser.add_argument(
        "--rates", help='JSON with rates measured on your machines, e.g. {"infer_chunks_per_gpu_s": 900}'
    )


def run(args: argparse.Namespace) -> int:
    for option in ("hours", "gpus", "cores_per_gpu", "gpu_scale"):
        value = getattr(args, option)
        if value is not None and not 0 < value < MOST:
            raise ConfigError(
                f"--{option.replace('_', '-')} {value:g} must be more than 0, and a real number"
            )
    for option in ("price", "labelled_hours", "gigabytes", "recordings"):
        value = getattr(args, option)
        if not 0 <= value < MOST:
            raise ConfigError(f"--{option.replace('_', '-')} {value:g} must be 0 or more, and a real number")
    archive = _archive(args)
    hardware = Hardware(args.gpus, args.cores_per_gpu)
    rates = _rates(args)
    stages = plan_stages(archive, args.config, hardware, rates)
    among = f" in {archive.num_recordings:,} recordings" if archive.num_recordings else ""
    print(
        f"{archive.hours:,.1f} h{among} ({archive.num_bytes / 1e9:,.1f} GB), "
        f"{archive.num_chunks:,} chunks; {args.gpus} GPUs at {rates.scale:g} x {rates.device}, {hardware.num_cores} cores"
    )
    print("\n".join(plan_lines(stages, hardware, args.price)))
    print("An estimate from rates measured elsewhere: the first minutes of each stage print the real ones.")
    return 0


def plan_lines(stages: Sequence[StagePlan], hardware: Hardware, price: float = 0.0) -> list[str]:
    """The table of stages. Whole machines are paid for, also by a stage that leaves their GPUs idle: the cost of a stage
    is that of all GPUs for its hours.
    """

    def line(name: str, hours: float, gpu_hours: float, written: str, limit: str = "") -> str:
        cost = f"{hours * hardware.num_gpus * price:>12,.2f}" if price else ""
        return f"{name:<14}{hours:>10,.2f}{gpu_hours:>12,.1f}{cost}{written:>12}  {limit}".rstrip()

    head = f"{'stage':<14}{'hours':>10}{'GPU-hours':>12}" + (f"{'cost':>12}" if price else "")
    lines = [head + f"{'written':>12}  limited by"]
    for stage in stages:
        size = f"{stage.num_bytes / 1e9:,.1f} GB" if stage.num_bytes else "-"
        lines.append(line(stage.name, stage.hours, stage.gpu_hours, size, stage.limit))
    total = (sum(stage.hours for stage in stages), sum(stage.gpu_hours for stage in stages))
    return [*lines, line("total", *total, "")]


def _rates(args: argparse.Namespace) -> Rates:
    if not args.rates:
        return replace(gpu_rates(args.config), scale=args.gpu_scale)
    own = _json_object(args.rates, "--rates")
    names = [field.name for field in fields(Rates)]
    for name, value in own.items():
        if name not in names or (name != "device" and not (isinstance(value, int | float) and value > 0)):
            raise ConfigError(
                f"--rates {args.rates}: {name}={value!r} is no rate:\n"
                f"give positive numbers for some of {', '.join(names)}"
            )
    return replace(gpu_rates(args.config), **({"scale": args.gpu_scale} | own))


def _json_object(path: str, option: str) -> dict:
    try:
        folder, name = open_beside(path)
        found = json.loads(folder.read_bytes(name))
    except ValueError as error:
        raise ConfigError(f"{option} {path} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{option} {path} holds no JSON object")
    return found


def _archive(args: argparse.Namespace) -> Archive:
    if args.inventory:
        refuse_idle(args, ("hours", "recordings", "gigabytes"), "--inventory says it, give one of them")
        found = _json_object(args.inventory, "--inventory")
        if missing := [name for name in ("hours", "num_files", "num_bytes") if name not in found]:
            raise ConfigError(
                f"--inventory {args.inventory} has no {', '.join(missing)}:\n"
                "give what `mast inventory ARCHIVE --json FILE` wrote"
            )
        for name in ("hours", "num_files", "num_bytes"):
            if not (isinstance(found[name], int | float) and 0 <= found[name] < MOST_BYTES):
                raise ConfigError(
                    f"--inventory {args.inventory}: {name}={found[name]!r} is no number of 0 or more:\n"
                    "give what `mast inventory ARCHIVE --json FILE` wrote"
                )
        return Archive(found["hours"], found["num_files"], found["num_bytes"], args.labelled_hours)
    if args.hours is None:
        raise ConfigError(
            "nothing to plan for: give --hours, or --inventory with the JSON of `mast inventory --json`"
        )
    num_bytes = int(args.gigabytes * 1e9) or int(args.hours * 3600 * 96_000)  # 48 kHz, 16 bit, mono
    return Archive(args.hours, args.recordings, num_bytes, args.labelled_hours)
