"""Show runs, games and what-ifs as live pages in a browser.

:mod:`serve` opens the port and prints the link, :mod:`guard` refuses whoever does not have it, :mod:`site`
knows the places and reads their archives, :mod:`app` has the routes, and each module of :mod:`pages` makes
one kind of page from the code that the report and the commands use. Pages are rendered here; the scripts of
``static`` draw curves, replace what has changed (:mod:`live`), and let the keyboard turn moves. A further
page is a module of :mod:`pages` with its template, and a line in :data:`app.ROUTES`.
"""

from unstable_stream.ui.web.app import build_app
from unstable_stream.ui.web.serve import serve
from unstable_stream.ui.web.site import Site

__all__ = ["Site", "build_app", "serve"]
