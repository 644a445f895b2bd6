"""The token without which nobody may use the Ray instance of a run.

Ray listens on all addresses of a machine, and whoever reaches it runs code as its user. With a token in the
environment it answers only to those who have the same one. Ray reads these variables when it is imported.
"""

import os
import secrets
import sys

__all__ = ["set_token"]


def set_token() -> None:
    """Let a private Ray instance ask for a new token; processes started from here on inherit it.

    Nothing is changed if the user has chosen a mode, if ``RAY_ADDRESS`` names a cluster, or if this process
    has imported Ray already, as a notebook may have: then it is too late.
    """
    if "RAY_AUTH_MODE" in os.environ or "RAY_ADDRESS" in os.environ or "ray" in sys.modules:
        return
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
