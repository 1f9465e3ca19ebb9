"""`mast plan`: hours, GPU-hours and storage of every stage for N GPUs, and what limits each, before spending a cent."""

import argparse
import json
from pathlib import Path

from mast_ray.config.errors import ConfigError
from mast_ray.tables.planning import Archive, Hardware, Rates, plan_stages

HELP = """Arithmetic from an inventory and measured rates.

  mast plan --hours 661.7 --recordings 4000 --gigabytes 229 --labelled-hours 24 --gpus 8
  mast plan --inventory inventory.json --gpus 64 --gpu-scale 0.4     (an A100 has about 0.4 of an H200's bf16 rate)"""
USES_CONFIG = True


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
        "--rates", help="JSON with rates measured on your machines (fields of the printed line)"
    )


def run(args: argparse.Namespace) -> int:
    archive = _archive(args)
    hardware = Hardware(args.gpus, args.cores_per_gpu)
    rates = Rates(**json.loads(Path(args.rates).read_text())) if args.rates else Rates(scale=args.gpu_scale)
    stages = plan_stages(archive, args.config, hardware, rates)
    print(
        f"{archive.hours:,.1f} h in {archive.num_recordings:,} recordings ({archive.num_bytes / 1e9:,.1f} GB), "
        f"{archive.num_chunks:,} chunks; {args.gpus} GPUs at {rates.scale:g} x {rates.device}, {hardware.num_cores} cores"
    )
    print(f"{'stage':<14}{'hours':>10}{'GPU-hours':>12}{'written':>12}  limited by")
    for stage in stages:
        size = f"{stage.num_bytes / 1e9:,.1f} GB" if stage.num_bytes else "-"
        print(f"{stage.name:<14}{stage.hours:>10,.2f}{stage.gpu_hours:>12,.1f}{size:>12}  {stage.limit}")
    print(f"{'total':<14}{sum(s.hours for s in stages):>10,.2f}{sum(s.gpu_hours for s in stages):>12,.1f}")
    print("An estimate from rates measured elsewhere: the first minutes of each stage print the real ones.")
    return 0


def _archive(args: argparse.Namespace) -> Archive:
    if args.inventory:
        found = json.loads(Path(args.inventory).read_text(encoding="utf-8"))
        return Archive(found["hours"], found["num_files"], found["num_bytes"], args.labelled_hours)
    if args.hours is None:
        raise ConfigError(
            "nothing to plan for: give --hours, or --inventory with the JSON of `mast inventory --json`"
        )
    num_bytes = int(args.gigabytes * 1e9) or int(args.hours * 3600 * 96_000)  # 48 kHz, 16 bit, mono
    return Archive(args.hours, args.recordings, num_bytes, args.labelled_hours)
