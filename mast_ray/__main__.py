"""`python -m mast_ray` is `mast`."""

import sys

from mast_ray.verbs.main import main

sys.exit(main())
