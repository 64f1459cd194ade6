"""Tools for tests of code that uses the log, and for our own: no sleeps, no stand-ins, kills that can be repeated.

Pytest finds the fixtures of `eventlog.testing.plugin` by itself; the rest works with any test runner.
"""

from eventlog.testing.clock import ManualClock
from eventlog.testing.crash import crashed
from eventlog.testing.evals import Trajectory, run_eval_turn
from eventlog.testing.recording import Recording
from eventlog.testing.settling import settled

__all__ = ["ManualClock", "Recording", "Trajectory", "crashed", "run_eval_turn", "settled"]
