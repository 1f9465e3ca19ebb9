"""`ray job submit ... -- python jobs/pseudo_label.py ARGS`: the same as `mast pseudo-label ARGS`."""

import sys

from mast_ray.verbs.main import run_verb

if __name__ == "__main__":
    sys.exit(run_verb("pseudo-label"))
