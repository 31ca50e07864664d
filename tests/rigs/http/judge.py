"""Whether a server has what was sent. It reads the server, and of the ledger it believes only how many may be there
twice: more than that is a failure, as is one that is missing, altered, or not as it was to be stored.
"""
import collections
import time

from lib.check import check, same
from payloads import is_text, number_of, payload

Found = collections.namedtuple("Found", "there twice")


def judge(what, stored, sent, twice_at_most, began, absent=frozenset()):
    """`stored` are the records of the server, of numbers below `sent`; `absent` are those that it must not have. Times
    lie behind `began`. How many are there, and how many of them came again."""
    seen, records = bytearray(sent), 0
    earliest, latest = int(began * 1e9), int(time.time() * 1e9)
    for record in stored:
        number = number_of(record.payload)
        check(number < sent, lambda number=number: f"{what}: {number} is there, {sent} were sent")
        same(record.payload, payload(number), lambda number=number: f"{what}: the payload of {number}")
        same(record.is_text, is_text(number), lambda number=number: f"{what}: {number} is stored as text")
        check(earliest <= record.time <= latest,
              lambda record=record: f"{what}: {record.time} is not between {earliest} and {latest}")
        same(record.source, "127.0.0.1", f"{what}: who sent it")
        seen[number] = min(seen[number] + 1, 255)
        records += 1
    missing = [number for number, times in enumerate(seen) if not times and number not in absent]
    check(not missing, lambda: f"{what}: {len(missing)} of {sent} are missing, first {missing[:5]}")
    wrong = [number for number in absent if seen[number]]
    check(not wrong, lambda: f"{what}: {len(wrong)} are there although the server refused them, first {wrong[:5]}")
    twice = records - (sent - len(absent))
    check(twice <= twice_at_most, lambda: f"{what}: {twice} came twice, {twice_at_most} were told")
    return Found(records - twice, twice)
