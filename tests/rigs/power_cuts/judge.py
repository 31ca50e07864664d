"""What a disk must have after a power cut, from what was seen before it."""
from lib.check import Failed, check, check_the_judge

# How late a sync may be that is due each second, beside how long this machine stood still.
LATE_S = 1.0


class Judge:
    """`seen` are the observations, one for each mark. A state lies behind a mark `m`: what was seen up to `m` was so
    before the cut. What was read for `m + 1` may be older than the cut, what was read for `m + 2` is not: what is
    still there then was there at the cut if it was at `m`."""

    def __init__(self, seen):
        self.seen, self.flushes, self.states, self.torn, self.held = seen, 0, 0, 0, 0
        self.oldest_missing = {"sync": 0.0, "spill": 0.0}
        self.most_again = 0
        check(not seen[-1]["dropped"], lambda: f"this machine is too slow for its load: {seen[-1]['dropped']} dropped")
        self.late = LATE_S + max(after["ended"] - before["ended"] for before, after in zip(seen, seen[1:]))

    def look(self, mark, found, where):
        try:
            self.files(mark, found)
            self.spill(mark, found)
        except Failed as why:
            raise Failed(f"{where}: {why}") from why
        self.states += 1

    def age(self, mark, name, missing):
        """How long before the mark the oldest of these was seen."""
        return next((self.seen[mark]["ended"] - one["ended"] for one in self.seen[:mark + 1] if one[name] & missing), 0)

    def files(self, mark, found):
        after = self.seen[min(mark + 2, len(self.seen) - 1)]
        for name, limit in (("plain", 1), ("kept", 1), ("sources", 1), ("rotated", None)):
            has = set(found[name])
            check(len(has) == len(found[name]), f"{name}: {len(found[name]) - len(has)} records are there twice")
            what = "finished" if name == "rotated" else name
            # What `keep` has removed by then may be missing.
            stays = after[what]
            missing = (self.seen[mark][what] & stays) - has
            if limit is not None:
                age = self.age(mark, what, missing)
                self.oldest_missing["sync"] = max(self.oldest_missing["sync"], age)
                check(age <= limit + self.late, lambda: f"{name}: {len(missing)} are missing, the oldest was there "
                      f"{age:.2f} s before; sync is {limit} s")
            else:
                check(self.age(mark, what, missing) <= self.late,
                      f"{name}: a finished file is not on the disk: {missing}")
            self.promised(mark, name, what, stays, has)

    def promised(self, mark, name, what, stays, has):
        """What was written before the moment that the ledger had told as `synced_at`."""
        told = self.seen[mark]["synced_at"].get(name)
        if told is None:
            return
        before = [one for one in self.seen[:mark + 1] if one["ended"] < told]
        missing = before and (before[-1][what] & stays) - has
        self.held += bool(before and before[-1][what] & stays)
        check(not missing, lambda: f"{name}: {len(missing)} are missing that were written before {told}, which was "
              f"`synced_at`: {sorted(missing)[:5]}")

    def spill(self, mark, found):
        came, seen, after = found["peer"], self.seen[mark], self.seen[min(mark + 2, len(self.seen) - 1)]
        has = set(came)
        check(came == sorted(has), "spill: what waited comes out of order or twice")
        waited = (seen["spill"] & after["spill"]) - after["peer"]
        age = self.age(mark, "spill", waited - has)
        self.oldest_missing["spill"] = max(self.oldest_missing["spill"], age)
        check(age <= 1 + self.late, lambda: f"spill: {len(waited - has)} are missing, the oldest was there {age:.2f} s "
              "before")
        # A second of what was sent already may come again, and what the start says of itself.
        long_ago = [one for one in self.seen[:mark + 1] if one["ended"] < seen["ended"] - 1 - self.late]
        again = len(has & long_ago[-1]["peer"]) if long_ago else 0
        self.most_again = max(self.most_again, again)
        check(again <= found["repeats"], lambda: f"spill: {again} come again that were sent long before, and udpd says "
              f"{found['repeats']}")

    def row(self):
        return [len(self.seen), self.flushes, self.states, self.torn, f"{self.oldest_missing['sync']:.2f} s",
                f"{self.oldest_missing['spill']:.2f} s", self.most_again]

    def summary(self):
        sync, spill = self.oldest_missing["sync"], self.oldest_missing["spill"]
        return (f"{len(self.seen)} marks, {self.flushes} flushes, {self.states} states, {self.torn} with a part "
                f"of later writes; the oldest missing record was {sync:.2f} s old, the oldest missing datagram of a "
                f"spill {spill:.2f} s; {self.held} times all that was told as synced was there")

    @staticmethod
    def check_itself():
        def one(ended, last, spill=(), peer=()):
            return {"ended": ended, "plain": set(range(last)), "spill": set(spill), "peer": set(peer), "dropped": 0,
                    "kept": set(), "sources": set(), "finished": set(), "synced_at": {"plain": ended - 0.5}}

        def judged(plain, peer, repeats):
            seen = [one(0.0, 10), one(4.0, 20, range(10)), one(8.0, 30, range(10)), one(12.0, 40, range(10), range(5)),
                    one(16.0, 50, range(10), range(5))]
            Judge(seen).look(3, {"plain": plain, "kept": [], "rotated": [], "sources": [], "peer": peer,
                                 "repeats": repeats}, "a test")

        everything = list(range(36))
        judged(everything, list(range(5, 10)), 0)
        check_the_judge(judged, {
            "a record that is missing": (list(range(15)), list(range(5, 10)), 0),
            "a hole": ([*range(5), *range(6, 36)], list(range(5, 10)), 0),
            "a record twice": ([*everything, 3], list(range(5, 10)), 0),
            "a spill that lacks some": (everything, [5, 6], 0),
            "a wrong order": (everything, [6, 5, 7, 8, 9], 0),
        })
