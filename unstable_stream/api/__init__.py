"""The public API: everything that a command can do, as functions and objects.

``import unstable_stream as us`` loads names from here when they are first asked for. The command line calls
these modules and prints what they return.
"""
