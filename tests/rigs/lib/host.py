"""Files of this host, and commands that are run to their end."""
import os
import subprocess

from lib.check import check


def read(path):
    """The text of a file; a log may hold bytes that are none."""
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def read_bytes(path):
    with open(path, "rb") as file:
        return file.read()


def whole_lines(path):
    """The lines of a file, as bytes. The file must not end within one."""
    *lines, rest = read_bytes(path).split(b"\n")
    check(not rest, f"{path} ends within a line: {rest[:80]}")
    return lines


def write(path, content, mode=None, how="w"):
    """Writes a text or bytes; `how` is "a" to append."""
    if isinstance(content, bytes):
        with open(path, how + "b") as file:
            file.write(content)
    else:
        with open(path, how, encoding="utf-8") as file:
            file.write(content)
    if mode is not None:
        os.chmod(path, mode)


def execute(*command, **options):
    """Runs a command to its end: its `returncode`, `stdout` and `stderr`."""
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, **options)


def ends(code, *command, says="", **options):
    """Runs a command that must end with this code and say these words; all that it says."""
    done = execute(*command, **options)
    said = done.stdout + done.stderr
    check(done.returncode == code and says in said,
          lambda: f"{' '.join(map(str, command))}: exit {done.returncode}, wanted {code}, and {says!r} in: {said}")
    return said
