"""`ray job submit ... -- python jobs/prepare.py ARGS`: the same as `mast prepare ARGS`."""

import sys

from mast_ray.verbs.main import run_verb

if __name__ == "__main__":
    sys.exit(run_verb("prepare"))
