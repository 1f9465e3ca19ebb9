"""`ray job submit ... -- python jobs/advise_upsampling.py ARGS`: the same as `mast advise-upsampling ARGS`."""

import sys

from mast_ray.verbs.main import run_verb

if __name__ == "__main__":
    sys.exit(run_verb("advise-upsampling"))
