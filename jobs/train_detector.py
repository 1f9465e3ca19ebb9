"""`ray job submit ... -- python jobs/train_detector.py ARGS`: the same as `mast train ARGS`."""

import sys

from mast_ray.verbs.main import run_verb

if __name__ == "__main__":
    sys.exit(run_verb("train"))
