"""Imitation: a run that learns from turns of games already played, in place of games of its own."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unstable_stream.api.build import build
from unstable_stream.api.run import Run
from unstable_stream.api.settings import make_config
from unstable_stream.errors import ConfigError
from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.recording import derived_name


def imitate(
    config: "RunConfig | Mapping[str, Any] | Path | str",
    where: str = "",
    *,
    weight: str = "1",
    pairs: str = "",
    data: Path | str | None = None,
    log: str | None = None,
    overrides: Sequence[str | tuple[str, Any]] = (),
    **settings: Any,
) -> Run:
    """Return a run that learns from turns of games in the archive, not started: :meth:`Run.start` it.

    It maximises the likelihood of the chosen answers, each times its weight, or learns from pairs of a chosen
    and a rejected answer. It is a run like others but that it plays no training games. To go on from it by
    self-play: ``us.load("my.toml", init_from="RUN@last")``.

    Args:
        config: the settings, as for :func:`build`: ``learner``, ``evaluation`` and ``train_envs`` with their
            templates; how games are played for training plays no part.
        where: SQL over the view ``moves``: the turns, of any run, of any player.
        weight: SQL over the same: each turn's weight in the loss. Where it is negative, the answer is made
            less likely.
        pairs: in place of ``where``, a query with four columns: game and ``game_turn`` of a chosen move, and
            of a rejected one at the same position. The algorithm is then DPO; ``algorithm="ipo"`` is another.
        data: data directory; ``./unstable-data`` by default.
        log: the event log; ``None``: ``local``.
        overrides: ``key.path=value`` as on a command line, stronger than all else.
        settings: keys that differ, as for :func:`build`; ``Any``: of any kind.

    Raises:
        ConfigError: a setting that does not exist, or that cannot work. What is wrong with ``where`` is told
            when the run starts; nothing is stored then.
    """
    own: dict[str, Any] = {
        "name": derived_name("imitate", make_config({}, config).name),
        "imitation": {"where": where, "weight": weight, "pairs": pairs},
        "algorithm": "dpo" if pairs else "cross-entropy",
        "buffer": {"max_staleness": None, "strategy": "paired" if pairs else "random"},
    }
    if pairs:
        own["learner.optimizer_steps"] = 1
    elif not where:
        raise ConfigError("nothing is chosen: give where, a condition over moves, or pairs")
    return build(config=config, data=data, log=log, overrides=overrides, **{**own, **settings})
