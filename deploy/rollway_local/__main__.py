"""``python -m rollway_local`` is ``rollway``."""

import sys

from rollway_local.cli import main

sys.exit(main())
