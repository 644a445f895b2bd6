"""Files at an address that every host reaches: object stores and other remote places, through fsspec.

An address is a URI such as ``s3://bucket/runs``. :class:`~.store.Store` reads and writes there, and waits
for a store that is away; :class:`~.cache.HostCache` keeps what this host has fetched. A path of the file
system is no address: it is used as it is, and nothing of it is copied.
"""

from unstable_stream.log.stores.address import (
    LONGEST_NAME,
    checked_address,
    is_address,
    joined,
    name_of,
    owner_of,
    path_part,
)
from unstable_stream.log.stores.cache import HostCache
from unstable_stream.log.stores.checkpoint_files import (
    has_file,
    hold_optimizer_state,
    opened_checkpoint,
    sha256_of,
)
from unstable_stream.log.stores.store import Store, store_wait_s, waiting_until

__all__ = [
    "LONGEST_NAME",
    "HostCache",
    "Store",
    "checked_address",
    "has_file",
    "hold_optimizer_state",
    "is_address",
    "joined",
    "name_of",
    "opened_checkpoint",
    "owner_of",
    "path_part",
    "sha256_of",
    "store_wait_s",
    "waiting_until",
]
