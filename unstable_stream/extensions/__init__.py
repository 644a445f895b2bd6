"""The one plug point: it loads every extension that a configuration names, in one notation.

An extension is named ``name``, ``package.module:Name``, ``path/to/file.py:Name`` or by an entry point, with
arguments as a table ``{type = "...", key = value}`` or in one string, ``"target(key=value)"``. The kinds of
extension are in :data:`KINDS`; ``docs/extending.md`` shows each. For users of this package:

- :func:`reference_to` turns an object, a class or a function into that notation; :func:`references_to` does
  the same for a list, a ``Compose...`` or a single object;
- :func:`build` makes the object that a reference names; :func:`load` returns the class, function or object
  without calling it;
- :func:`loading` returns whether code is being imported as an extension now;
- :func:`needs_this_process` returns whether a reference is valid only in this process (``backend="inline"``);
- :func:`search` adds a directory to search for modules; :func:`confine` limits the code that may be loaded;
- :func:`use_of` identifies the code of a reference: distribution and version, or digest of the source.
"""

from unstable_stream.extensions.arguments import RemembersArguments
from unstable_stream.extensions.build import build
from unstable_stream.extensions.imports import forget_changed_files, loading, search
from unstable_stream.extensions.kinds import KINDS, Kind
from unstable_stream.extensions.load import entry_points_of, is_extension, load, use_of
from unstable_stream.extensions.objects import needs_this_process, reference_to, references_to
from unstable_stream.extensions.permission import (
    ALLOW_CODE,
    allowed_patterns,
    confine,
    confined,
    is_allowed,
    pattern_of,
)
from unstable_stream.extensions.reference import Reference, Spec, absolute

__all__ = [
    "ALLOW_CODE",
    "KINDS",
    "Kind",
    "Reference",
    "RemembersArguments",
    "Spec",
    "absolute",
    "allowed_patterns",
    "build",
    "confine",
    "confined",
    "entry_points_of",
    "forget_changed_files",
    "is_allowed",
    "is_extension",
    "load",
    "loading",
    "needs_this_process",
    "pattern_of",
    "reference_to",
    "references_to",
    "search",
    "use_of",
]
