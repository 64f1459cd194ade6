"""Counts what was tried and what held, and names what did not hold so that it can be brought back."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

MAX_NAMED = 20  # breaches that are told one by one


@dataclass
class Tally:
    """The numbers of one part."""

    part: str
    seed: int
    tried: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)
    """What happened on the way; none of it is a breach."""
    breaches: list[str] = field(default_factory=list)
    began_s: float = field(default_factory=time.monotonic)

    def breach(self, what: str) -> None:
        """Something did not hold."""
        self.breaches.append(what)

    def add(self, other: Tally) -> None:
        """Count in what another run of the same part found."""
        self.tried += other.tried
        self.seen += other.seen
        self.breaches += other.breaches

    @property
    def count(self) -> int:
        """Everything that was tried."""
        return self.tried.total()

    def __str__(self) -> str:
        took_s = time.monotonic() - self.began_s
        verdict = "all held" if not self.breaches else f"{len(self.breaches):,} DID NOT HOLD"
        lines = [f"{self.part}: {self.count:,} tried, {verdict} (seed {self.seed}, {took_s:.1f} s)"]
        lines += [f"  {number:>9,}  {what}" for what, number in sorted(self.tried.items())]
        lines += [f"  {number:>9,}    of it: {what}" for what, number in sorted(self.seen.items())]
        lines += [f"  BREACH {what}" for what in self.breaches[:MAX_NAMED]]
        return "\n".join(lines)

    def assert_held(self) -> None:
        """Print the numbers; raise if something did not hold."""
        print(f"\n{self}")
        assert not self.breaches, str(self)
