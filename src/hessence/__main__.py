"""``python -m hessence`` is the command line."""

import sys

from hessence.cli import main

sys.exit(main())
