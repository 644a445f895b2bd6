"""Show one run, or compare several, on one HTML page that needs no server and no network.

:mod:`reading` asks the archive, :mod:`samples` picks games worth reading, :mod:`sections` decides what is
shown and says so in words, :mod:`page` puts the page together, ``static/charts.js`` draws, also on the live
pages. A further chart is one function in :mod:`sections`.
"""

from unstable_stream.history.views.report.page import Proof, write_report
from unstable_stream.history.views.report.reading import find_runs

__all__ = ["Proof", "find_runs", "write_report"]
