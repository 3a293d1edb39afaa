"""`python -m delegate` is the command line."""

import sys

from delegate.entry import main

sys.exit(main())
