"""Ask this machine's NVIDIA GPUs how busy and how full they are."""

import asyncio
import shutil
from contextlib import suppress
from typing import Final

_FIELDS: Final = ("index", "utilization.gpu", "memory.used", "memory.total")
_PATIENCE_S: Final = 10.0
"""nvidia-smi takes a second; a driver that hangs must not hold up what else is reported."""
_ENDS_S: Final = 1.0
_MIB: Final = 2**20


async def read_gpus() -> dict[str, float]:
    """Return the metrics ``gpu/N/utilization``, ``gpu/N/memory-used`` and ``gpu/N/memory-total``.

    Nothing where there is no nvidia-smi, or where it does not answer.
    """
    command = shutil.which("nvidia-smi")
    if command is None:
        return {}
    try:
        process = await asyncio.create_subprocess_exec(
            command,
            f"--query-gpu={','.join(_FIELDS)}",
            "--format=csv,noheader,nounits",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError:
        return {}
    try:
        async with asyncio.timeout(_PATIENCE_S):
            printed, _ = await process.communicate()
    except TimeoutError:
        return {}
    finally:
        if process.returncode is None:
            process.kill()
            with suppress(TimeoutError):  # a driver that hangs keeps it
                async with asyncio.timeout(_ENDS_S):
                    await process.wait()
    return parse_gpus(printed.decode(errors="replace"))


def parse_gpus(printed: str) -> dict[str, float]:
    """Read what nvidia-smi prints: percent and MiB; a number that a GPU does not report is left out."""
    values: dict[str, float] = {}
    for line in printed.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(_FIELDS) or not cells[0].isdecimal():
            continue
        scales = {"utilization": 0.01, "memory-used": _MIB, "memory-total": _MIB}
        for (name, scale), cell in zip(scales.items(), cells[1:], strict=True):
            if cell.replace(".", "", 1).isdecimal():
                values[f"gpu/{cells[0]}/{name}"] = float(cell) * scale
    return values
