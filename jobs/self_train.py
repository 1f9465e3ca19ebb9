"""`ray job submit ... -- python jobs/self_train.py ARGS`: the same as `mast self-train ARGS`."""

import sys

from mast_ray.verbs.main import run_verb

if __name__ == "__main__":
    sys.exit(run_verb("self-train"))
