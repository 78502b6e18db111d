"""`python -m marlflow` is the command `marlflow`."""

import sys

from marlflow.cli.main import main

sys.exit(main())
