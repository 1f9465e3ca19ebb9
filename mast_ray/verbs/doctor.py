"""`mast doctor`: is this machine, cluster and storage fit for work? Every failure comes with its remedy."""

import argparse

from mast_ray.config.errors import CONFIG
from mast_ray.config.shown import shown
from mast_ray.stages.doctor import diagnose, gather_facts

HELP = "Check Python, packages, GPU, Ray's token and dashboard, a cluster, storage (read, write, conditional put), clock and disk."
USES_CONFIG = True
MARK = {"ok": "ok  ", "warn": "WARN", "fail": "FAIL"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--folder", default=".", help="where runs will be written")
    parser.add_argument("--storage", default="", help="a folder or s3:// prefix to try reading and writing")
    parser.add_argument(
        "--dashboard", default="http://127.0.0.1:8265", help="dashboard that must not answer without a token"
    )
    parser.add_argument("--address", default="", help="job server of a cluster, e.g. http://127.0.0.1:8265")


def run(args: argparse.Namespace) -> int:
    facts = gather_facts(args.folder, args.storage, args.config.storage, args.dashboard, args.address)
    findings = diagnose(facts)
    for finding in findings:
        print(f"{MARK[finding.status]}  {finding.name:<16} {shown(finding.seen)}")
        if finding.status != "ok" and finding.remedy:
            print(f"      {'':<16} -> {finding.remedy}")
    failed = [finding.name for finding in findings if finding.status == "fail"]
    print(f"{len(findings)} checks, {len(failed)} failed{': ' + ', '.join(failed) if failed else ''}")
    return CONFIG if failed else 0
