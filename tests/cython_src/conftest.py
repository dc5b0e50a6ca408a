import sys
from pathlib import Path

# Helpers shared by the tests of this folder are imported by name.
sys.path.insert(0, str(Path(__file__).parent))
