"""A key from the environment goes to its endpoint, and into no event, log line, table or report."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from unstable_stream.archive import query
from unstable_stream.runs.config import parse_config
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.services.launch.launcher import Backend, launch
from unstable_stream.ui.cli import app

pytestmark = [pytest.mark.longer, pytest.mark.timeout(600)]

KEY = "sk-secret-0123456789abcdef"
KEY_ENV = "TEST_ENDPOINT_KEY"
FREE_CELLS = ["[0]", "[1]", "[2]", "[3]", "[4]", "[5]", "[6]", "[7]", "[8]"]


class TalkativeEndpoint:
    """A chat endpoint that plays, and now and then refuses with a message that repeats the key."""

    def __init__(self) -> None:
        self.requests = 0
        self.authorised = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(
            int(line.split(":")[1]) for line in head.splitlines() if line.lower().startswith("content-length")
        )
        await reader.readexactly(length)
        self.requests += 1
        self.authorised += f"Bearer {KEY}" in head
        body: dict[str, Any]
        if self.requests % 4 == 0:
            status, body = 400, {"error": {"message": f"the key {KEY} may not use this model"}}
        else:
            message = {"role": "assistant", "content": FREE_CELLS[self.requests % len(FREE_CELLS)]}
            choice = {"index": 0, "finish_reason": "stop", "message": message}
            status, body = (
                200,
                {
                    "id": "1",
                    "object": "chat.completion",
                    "created": 0,
                    "model": "m",
                    "choices": [choice],
                },
            )
        content = json.dumps(body).encode()
        writer.write(
            f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\nconnection: close\r\n"
            f"content-length: {len(content)}\r\n\r\n".encode()
            + content
        )
        await writer.drain()
        writer.close()


@pytest.mark.parametrize(
    "backend", ["inline", pytest.param("ray", marks=[pytest.mark.slow, pytest.mark.long])]
)
async def test_a_key_stays_out_of_everything_that_is_kept(
    tmp_path: Path, backend: Backend, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(KEY_ENV, KEY)
    endpoint = TalkativeEndpoint()
    server = await asyncio.start_server(endpoint.serve, "127.0.0.1", 0)
    opponent = {
        "name": "talkative",
        "kind": "openai",
        "base_url": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1",
        "api_key_env": KEY_ENV,
        "template": "default",
    }
    config = parse_config(
        {
            "name": "secrets",
            "model": "tiny-player",
            "train_envs": [{"env_id": "TicTacToe-v0-train", "template": "tictactoe-board"}],
            "sampling": {"max_tokens": 2},
            "collector": {"num_workers": 8, "num_eval_workers": 4},
            "evaluation": {"opponents": [opponent], "max_eval_games_per_ckpt": 8},
            "learner": {"iterations": 1, "batch_size": 24, "mini_batch_size": 24},
        }
    )
    data = DataDir(tmp_path)
    async with server:
        launched = await launch(config, data, backend=backend)
    assert launched.outcome == "completed"
    assert endpoint.authorised == endpoint.requests > 8
    ends = query(
        data.archive, "SELECT type, count(*) FROM events WHERE type LIKE 'game-%' GROUP BY type"
    ).rows
    assert dict(ends)["game-abandoned"] > 0, "no refusal was met"
    report = tmp_path / "report.html"
    result = CliRunner().invoke(
        app, ["report", launched.run_id, "--data", str(tmp_path), "--output", str(report)]
    )
    assert result.exit_code == 0, result.output
    shown = capfd.readouterr()
    assert KEY not in shown.out + shown.err + result.output
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert report in files
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []
    # DuckDB may compress what it stores, so the archive is also asked.
    (found,) = query(data.archive, f"SELECT count(*) FROM events WHERE contains(value, '{KEY}')").rows
    assert found == (0,)
