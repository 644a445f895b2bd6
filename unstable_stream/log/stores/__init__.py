"""Files at an address that every host reaches: object stores and other remote places, through fsspec.

An address is a URI such as ``s3://bucket/runs``. :class:`~.store.Store` reads and writes there, and waits
for a store that is away; :class:`~.cache.HostCache` keeps what this host has fetched. A path of the file
system is no address: it is used as it is, and nothing of it is copied.
"""
