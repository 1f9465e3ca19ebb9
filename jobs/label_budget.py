"""`ray job submit ... -- python jobs/label_budget.py ARGS`: the same as `mast label-budget ARGS`."""

import sys

from mast_ray.verbs.main import run_verb

if __name__ == "__main__":
    sys.exit(run_verb("label-budget"))
