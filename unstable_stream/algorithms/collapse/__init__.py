"""Notice a collapse: count what the games of each update show, and watch the numbers of the updates.

:class:`GameTally` counts games into metrics of the next learner update. :class:`CollapseWatch` is a fold of
the updates' metrics: the same updates give the same warnings, live, after a restart, and of any recorded run.
"""

from unstable_stream.algorithms.collapse.tally import GameTally
from unstable_stream.algorithms.collapse.watch import RULES, CollapseWatch, Sign, advice

__all__ = ["RULES", "CollapseWatch", "GameTally", "Sign", "advice"]
