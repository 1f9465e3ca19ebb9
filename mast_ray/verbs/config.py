"""`mast config`: print a recipe as YAML with every knob explained."""

import argparse

from mast_ray.config.describe import described_yaml, knobs_markdown
from mast_ray.config.loading import config_to_yaml
from mast_ray.config.recipes import RECIPES

HELP = "Print the resolved config (recipe, --config file and --set applied) with descriptions, as YAML that can be replayed."
USES_CONFIG = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--plain", action="store_true", help="without descriptions")
    parser.add_argument("--markdown", action="store_true", help="all recipes side by side, for docs/knobs.md")


def run(args: argparse.Namespace) -> int:
    if args.markdown:
        print(knobs_markdown({name: recipe() for name, recipe in RECIPES.items()}), end="")
    elif args.plain:
        print(config_to_yaml(args.config), end="")
    else:
        print(described_yaml(args.config))
    return 0
