from __future__ import annotations

import sys

from bench.harness import main

sys.exit(main())
