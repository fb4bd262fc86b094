"""Runs conformance vectors in two steps: `run.py VECTORS OUT`.

answer   a separate process sees copies of the vectors without `expect` and `tags`, and writes
         `OUT/<path>/<group>.jsonl`
compare  reads the vectors and the answers, prints a table, exits with 1 on any failure
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from compare import compare_all
from vectors import groups, region_files, rows, without_answers, write_rows

ANSWER = Path(__file__).parent / "answer.py"


def main(vectors: Path, out: Path) -> int:
    found = groups(vectors)
    if not found:
        print(f"conformance: no vectors in {vectors}")
        return 1
    with TemporaryDirectory() as folder:
        questions = Path(folder)
        for group in found:
            (out / f"{group.label}.jsonl").unlink(missing_ok=True)
            write_rows(questions / f"{group.label}.jsonl", (without_answers(row) for row in rows(group.file)))
        for file in region_files(vectors):
            copy = questions / file.relative_to(vectors)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
        subprocess.run([sys.executable, str(ANSWER), str(questions), str(out)], check=True)
    return compare_all(found, out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vectors", type=Path, metavar="VECTORS")
    parser.add_argument("out", type=Path, metavar="OUT")
    arguments = parser.parse_args()
    sys.exit(main(arguments.vectors, arguments.out))
