"""The one plug point: it loads every extension that a configuration names, in one notation.

An extension is named ``name``, ``package.module:Name``, ``path/to/file.py:Name`` or by an entry point, with
arguments as a table ``{type = "...", key = value}`` or in one string, ``"target(key=value)"``. The kinds of
extension are in :data:`KINDS`; ``docs/how-to/extending.md`` shows each. For users of this package:

- :func:`reference_to` turns an object, a class or a function into that notation; :func:`references_to` does
  the same for a list, a ``Compose...`` or a single object;
- :func:`build` makes the object that a reference names; :func:`load` returns the class, function or object
  without calling it;
- :func:`loading` returns whether code is being imported as an extension now;
- :func:`needs_this_process` returns whether a reference is valid only in this process (``backend="inline"``);
- :func:`search` adds a directory to search for modules; :func:`confine` limits the code that may be loaded;
- :func:`use_of` identifies the code of a reference: distribution and version, or digest of the source.
"""

from unstable_stream.extensions.arguments import RemembersArguments as RemembersArguments
from unstable_stream.extensions.build import build as build
from unstable_stream.extensions.imports import forget_changed_files as forget_changed_files
from unstable_stream.extensions.imports import loading as loading
from unstable_stream.extensions.imports import search as search
from unstable_stream.extensions.kinds import KINDS as KINDS
from unstable_stream.extensions.kinds import Kind as Kind
from unstable_stream.extensions.load import entry_points_of as entry_points_of
from unstable_stream.extensions.load import is_extension as is_extension
from unstable_stream.extensions.load import load as load
from unstable_stream.extensions.load import use_of as use_of
from unstable_stream.extensions.objects import needs_this_process as needs_this_process
from unstable_stream.extensions.objects import reference_to as reference_to
from unstable_stream.extensions.objects import references_to as references_to
from unstable_stream.extensions.permission import ALLOW_CODE as ALLOW_CODE
from unstable_stream.extensions.permission import allowed_patterns as allowed_patterns
from unstable_stream.extensions.permission import confine as confine
from unstable_stream.extensions.permission import confined as confined
from unstable_stream.extensions.permission import is_allowed as is_allowed
from unstable_stream.extensions.permission import pattern_of as pattern_of
from unstable_stream.extensions.reference import Reference as Reference
from unstable_stream.extensions.reference import Spec as Spec
from unstable_stream.extensions.reference import absolute as absolute
