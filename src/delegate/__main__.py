"""`python -m delegate` is the command line."""

import sys

from delegate.cli.main import main

sys.exit(main())
