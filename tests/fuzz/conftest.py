"""Makes the targets importable; they are scripts beside each other, not an installed package."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
