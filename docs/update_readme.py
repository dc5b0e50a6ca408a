"""Put the figure and the table of a results folder into the README:  python docs/update_readme.py comparison"""

import re
import shutil
import sys
from pathlib import Path

from forktask.experiments.analysis.load import load
from forktask.experiments.analysis.speeds import main_plan, speed_table
from forktask.experiments.report import columns
from forktask.experiments.report.render_text import text_table
from forktask.experiments.report.sections import Table, records_of

ROOT = Path(__file__).resolve().parent.parent


def main(folder: str) -> None:
    """Copy figures/speedup.svg to docs/images and write the table of the main plan between the README's marks."""
    study = load(folder)
    shutil.copyfile(Path(folder) / "figures" / "speedup.svg", ROOT / "docs" / "images" / "comparison.svg")
    table = text_table(Table("speed", columns.SPEED, records_of(speed_table(study), main_plan(study))))
    readme = ROOT / "README.md"
    marked = "<!-- table -->\n```\n" + "\n".join(table) + "\n```\n<!-- end of table -->"
    text, found = re.subn(
        r"<!-- table -->.*<!-- end of table -->", lambda _: marked, readme.read_text(), flags=re.DOTALL
    )
    if found != 1:
        raise SystemExit(f"README.md must have the marks of its table once, has them {found} times")
    readme.write_text(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
