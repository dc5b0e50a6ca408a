"""Put measured error rates into their note.

python docs/update_scaling_rates.py power.jsonl [more.jsonl ...]
"""

import re
import sys
from pathlib import Path

from forktask.experiments.scaling import power

PAGE = Path(__file__).resolve().parent / "notes" / "scaling_error_rates.md"


def main(*files: str) -> None:
    """Write the tables of these files, made by `forktask scaling-power`, between the page's marks."""
    rows = [row for file in files for row in power.read_rows(Path(file))]
    marked = f"<!-- measured -->\n```\n{power.format_tables(power.summarise(rows))}\n```\n<!-- end of measured -->"
    text, found = re.subn(
        r"<!-- measured -->.*<!-- end of measured -->", lambda _: marked, PAGE.read_text(), flags=re.DOTALL
    )
    if found != 1:
        raise SystemExit(f"{PAGE.name} must have the marks of its table once, has them {found} times")
    PAGE.write_text(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
