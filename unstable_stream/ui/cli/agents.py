"""Commands for coding agents."""

import sys

from unstable_stream.ui.cli.options import DataPlace


def mcp_command(*, place: DataPlace) -> None:
    """Let a coding agent ask about runs and games: a read-only MCP server on stdin and stdout.

    The agent's program starts it; docs/how-to/ask-with-an-agent.md has what to configure there. It can list
    runs and games, show games, query with SQL, ask why, and compare runs; it changes nothing.

    Example: unstable-stream mcp --data runs
    """
    from unstable_stream.ui.cli.commands import every_help
    from unstable_stream.ui.mcp import serve

    if sys.stdin.isatty():
        print("a client of MCP starts this and asks on stdin; Ctrl-C ends it", file=sys.stderr)
    serve(place, every_help())
