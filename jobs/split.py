"""`ray job submit ... -- python jobs/split.py ARGS`: the same as `mast split ARGS`."""

import sys

from mast_ray.verbs.main import run_verb

if __name__ == "__main__":
    sys.exit(run_verb("split"))
