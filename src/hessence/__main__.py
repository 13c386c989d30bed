"""``python -m hessence`` is the command line."""

import sys

from hessence.cli.main import main

sys.exit(main())
