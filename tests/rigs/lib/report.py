"""The dated record of a run: a table of every case as CSV, and a page in Markdown above it."""
import csv
import datetime
import platform
from pathlib import Path

from lib.host import execute


def host(program):
    """When, where and by which program."""
    version = execute(program, "--version").stdout.strip()
    return f"{datetime.date.today()}, {platform.machine()}, Linux {platform.release()}, {version}."


def markdown_table(head, rows):
    """`head` is the first line of a table; a row is a list of cells."""
    columns = head.count("|") - 1
    return [head, "|" + "---|" * columns, *("| " + " | ".join(map(str, row)) + " |" for row in rows)]


def record(folder, name, fields, rows, page):
    """Writes NAME.csv with the rows, which are dictionaries, and NAME.md with the lines of the page."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"{name}.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fields, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    (folder / f"{name}.md").write_text("\n".join(page) + "\n", encoding="utf-8")
