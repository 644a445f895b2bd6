"""The event log: one port, the topics' declarations, and the adapters behind the port.

``port`` defines a log; ``local`` keeps it in a SQLite file, ``kafka`` on a cluster; ``records`` turns events
into records and back. Importing the package loads no adapter.
"""
