"""`ray job submit ... -- python jobs/learn.py ARGS`: the same as `mast learn ARGS`."""

import sys

from mast_ray.verbs.main import run_verb

if __name__ == "__main__":
    sys.exit(run_verb("learn"))
