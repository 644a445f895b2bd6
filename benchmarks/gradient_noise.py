"""How much of a gradient is signal: how many steps a batch needs, by the advantage that the steps get.

``python -m benchmarks.gradient_noise DIRECTORY --at 10 60`` trains the quickstart there (or takes the run
that is there), forks it at each update with a learning rate of nearly zero, and so plays thousands of steps
of one policy. Their gradients are compared between groups of games, with several advantages for the same
steps.

- *Noise scale*: the number of steps at which noise and signal of a batch's mean gradient are equal,
  ``tr(Sigma) / |G|^2`` of McCandlish et al., "An Empirical Model of Large-Batch Training", arXiv:1812.06162,
  equation 2.9. Both are estimated without bias: with the mean gradient ``g_k`` of each of ``K`` groups of
  ``b`` steps and the mean ``g`` of all, ``|G|^2 = (K |g|^2 - mean |g_k|^2) / (K - 1)`` and ``tr(Sigma) =
  b K (mean |g_k|^2 - |g|^2) / (K - 1)``. A group holds whole games: turns of one game are not independent.
- *Ratio*: the noise scale of the quickstart's own advantage over that of this one. 2 says that half the steps
  would do. The interval is from a jackknife over the groups, as that of the ratio of two measured on the same
  games.

Only the policy's gradient is compared, without the entropy bonus, which has no such noise.
"""

import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

import unstable_stream as us
from benchmarks.harness import machine, parser
from unstable_stream.algorithms import Reinforce, TrainingSample
from unstable_stream.algorithms.learners.cutting import micro_batches
from unstable_stream.algorithms.learners.policy import build_whole_policy
from unstable_stream.api.quickstart import QUICKSTART
from unstable_stream.events import GameOutcome, Step

_Floats = NDArray[np.float64]
GROUPS: Final = 40
"""Groups of games."""


@dataclass(frozen=True)
class Played:
    """Steps of one policy, and what an advantage may be made of."""

    steps: list[Step]
    opponents: list[str]
    """Of each step: the name of a fixed opponent, ``itself``, or ``checkpoint``."""
    games: dict[str, int]
    """The group of each game."""
    states: _Floats
    """float64[steps, hidden]: the policy's state before the answer."""

    def column(self, name: str) -> _Floats:
        """Return a number of each step."""
        return np.array([float(getattr(step, name)) for step in self.steps])

    def discounted(self) -> _Floats:
        """Return the game's result, discounted as the quickstart does, without any baseline."""
        left = self.column("num_turns") - 1 - self.column("turn_index")
        return self.column("raw_reward") * 0.8**left

    def groups(self) -> NDArray[np.int64]:
        """Return the group of each step."""
        return np.array([self.games[step.game_id] for step in self.steps])


Advantage = Callable[[Played], _Floats]


def against_mean(*by: Callable[[Played], Sequence[object]]) -> Advantage:
    """Return the advantage over the mean of the steps that are alike in all of these."""

    def advantage(played: Played) -> _Floats:
        reward = played.discounted()
        keys = [*zip(*(each(played) for each in by), strict=True)] if by else [()] * len(reward)
        members: dict[object, list[int]] = defaultdict(list)
        for at, key in enumerate(keys):
            members[key].append(at)
        for alike in members.values():
            reward[alike] -= reward[alike].mean()
        return reward

    return advantage


def _seat(played: Played) -> Sequence[object]:
    return [(step.env_id, step.seat) for step in played.steps]


def _opponent(played: Played) -> Sequence[object]:
    return played.opponents


def _turns_left(played: Played) -> Sequence[object]:
    """Not to be had in play: it tells the future."""
    return [step.num_turns - step.turn_index for step in played.steps]


def _turn(played: Played) -> Sequence[object]:
    return [step.turn_index for step in played.steps]


def critic(*, hidden: int) -> Advantage:
    """Return the advantage over a critic's value: a linear one, or with a hidden layer.

    It is fitted on the games of the other half of the groups, so that it has not seen the game it judges.
    """

    def advantage(played: Played) -> _Floats:
        reward, groups = played.discounted(), played.groups()
        inputs = torch.tensor(np.concatenate([played.states, _one_hot(played)], axis=1), dtype=torch.float32)
        inputs = (inputs - inputs.mean(0)) / (inputs.std(0) + 1e-6)
        wanted = torch.tensor(reward, dtype=torch.float32)
        values = np.zeros(len(reward))
        for half in (0, 1):
            train, judged = groups % 2 == half, groups % 2 != half
            values[judged] = _fitted(inputs[train], wanted[train], inputs[judged], hidden)
        found: _Floats = reward - values
        return found

    return advantage


def _one_hot(played: Played) -> _Floats:
    names = sorted({*zip(_seat(played), played.opponents, strict=True)}, key=str)
    found: _Floats = np.eye(len(names))[
        [names.index(pair) for pair in zip(_seat(played), played.opponents, strict=True)]
    ]
    return found


def _fitted(inputs: torch.Tensor, wanted: torch.Tensor, judged: torch.Tensor, hidden: int) -> _Floats:
    torch.manual_seed(0)
    width = inputs.shape[1]
    layers: list[torch.nn.Module] = [torch.nn.Linear(width, 1)]
    if hidden:
        layers = [torch.nn.Linear(width, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 1)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    for epoch in range(30):
        order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(epoch))
        for part in torch.chunk(order, max(1, len(order) // 256)):
            optimizer.zero_grad()
            (model(inputs[part]).squeeze(-1) - wanted[part]).square().mean().backward()
            optimizer.step()
    with torch.no_grad():
        found: _Floats = model(judged).squeeze(-1).double().numpy()
    return found


VARIANTS: Final[Mapping[str, Advantage]] = {
    "the quickstart's: running mean of the seat": lambda played: played.column("reward"),
    "no baseline": lambda played: played.discounted(),
    "mean of the batch": against_mean(),
    "mean of the seat": against_mean(_seat),
    "mean of the opponent": against_mean(_opponent),
    "mean of seat and opponent": against_mean(_seat, _opponent),
    "mean of seat, opponent and turn": against_mean(_seat, _opponent, _turn),
    "critic, linear": critic(hidden=0),
    "critic, 64 hidden": critic(hidden=64),
    "without discount: mean of seat and opponent": lambda played: (
        played.column("raw_reward") - _means(played.column("raw_reward"), _seat(played), played.opponents)
    ),
}


def _means(values: _Floats, *by: Sequence[object]) -> _Floats:
    keys = [*zip(*by, strict=True)]
    sums: dict[object, list[float]] = defaultdict(list)
    for key, value in zip(keys, values.tolist(), strict=True):
        sums[key].append(value)
    return np.array([math.fsum(sums[key]) / len(sums[key]) for key in keys])


class Gradients:
    """The policy of a checkpoint, and the gradients of its steps."""

    def __init__(self, path: str, max_tokens: int) -> None:
        self._model = build_whole_policy(path, device=torch.device("cpu"))
        self._model.eval()
        self._algorithm = Reinforce()
        device = torch.device("cpu")
        self._algorithm.initialize(
            self._model, device=device, max_generation_len=max_tokens, max_train_len=None
        )
        self._parameters = [each for each in self._model.parameters() if each.requires_grad]

    def states(self, steps: Sequence[Step]) -> _Floats:
        """Return the policy's state before each answer, float64[steps, hidden]."""
        found = np.zeros((len(steps), self._algorithm.hidden_size))
        samples = [TrainingSample.from_step(step, 0.0) for step in steps]
        with torch.no_grad():
            for indices in self._parts(samples):
                batch = self._algorithm.prepare_batch([samples[at] for at in indices])
                found[indices] = self._algorithm.states(batch)[batch.first_tokens].double().numpy()
        return found

    def of_groups(self, played: Played, advantages: _Floats) -> tuple[torch.Tensor, _Floats]:
        """Return the mean gradient of each group, float32[groups, parameters], and the groups' steps."""
        groups = played.groups()
        rows, counts = [], []
        for group in range(groups.max() + 1):
            at = np.flatnonzero(groups == group)
            samples = [TrainingSample.from_step(played.steps[each], float(advantages[each])) for each in at]
            self._model.zero_grad(set_to_none=True)
            for indices in self._parts(samples):
                batch = self._algorithm.prepare_batch([samples[each] for each in indices])
                self._algorithm.update(batch, scale=1.0 / len(samples), update=1)
            # A parameter that no step reaches has no gradient.
            parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters]
            rows.append(torch.cat([part.flatten() for part in parts]).clone())
            counts.append(len(samples))
        return torch.stack(rows), np.array(counts, dtype=np.float64)

    def _parts(self, samples: Sequence[TrainingSample]) -> list[list[int]]:
        lengths = [len(each.prompt_token_ids) + len(each.completion_token_ids) for each in samples]
        return micro_batches(lengths, max_rows=256, max_tokens=8192, overhead_tokens=64)


def noise_scale(products: _Floats, counts: _Floats) -> float:
    """Return the noise scale in steps.

    Args:
        products: float64[K, K], the products of the groups' mean gradients with each other.
        counts: float64[K], steps of each group.
    """
    number = len(counts)
    of_all, of_one = products.mean(), np.trace(products) / number
    signal = (number * of_all - of_one) / (number - 1)
    noise = counts.mean() * number * (of_one - of_all) / (number - 1)
    return float(noise / signal) if signal > 0 else math.inf


def jackknife(value: Callable[[NDArray[np.int64]], float], number: int) -> tuple[float, float]:
    """Return a value of all groups, and its standard error from leaving out one group at a time."""
    every = np.arange(number)
    left_out = np.array([value(np.delete(every, at)) for at in every])
    error = math.sqrt((number - 1) / number * float(((left_out - left_out.mean()) ** 2).sum()))
    return value(every), error


def measure(run: us.Run, update: int, updates: int) -> list[dict[str, Any]]:
    """Play steps of a checkpoint, and return a row for each advantage."""
    changes = {"learning_rate": 1e-12, "iterations": update + updates, "backend": "inline"}
    frozen = run.fork(at=update, **changes).start(live=False)
    played_by = {f"ckpt-{number:06d}" for number in range(update, update + updates + 1)}
    opponents: dict[str, str] = {}
    steps: list[Step] = []
    for event in frozen.replay(topics=("steps", "game-outcomes")):
        if isinstance(event, Step) and event.model_uid in played_by:
            steps.append(event)
        elif isinstance(event, GameOutcome):
            others = [seat for seat in event.seats if not seat.trained]
            kinds = {"checkpoint" if seat.kind == "checkpoint" else seat.model_uid for seat in others}
            opponents[event.game_id] = "+".join(sorted(kinds)) or "itself"
    steps = [step for step in steps if step.game_id in opponents]
    games = {game: at % GROUPS for at, game in enumerate(dict.fromkeys(step.game_id for step in steps))}
    path = next(each["path"] for each in run.checkpoints().dicts() if each["iteration"] == update)
    gradients = Gradients(path, frozen.config.sampling.max_tokens)
    states = gradients.states(steps)
    played = Played(steps, [opponents[step.game_id] for step in steps], games, states)
    found = {}
    for name, advantage in VARIANTS.items():
        mean, counts = gradients.of_groups(played, advantage(played))
        found[name] = (mean.double() @ mean.double().T).numpy(), counts
    first, *_ = found.values()

    def scale(of: tuple[_Floats, _Floats], at: NDArray[np.int64]) -> float:
        return noise_scale(of[0][np.ix_(at, at)], of[1][at])

    def better(of: tuple[_Floats, _Floats], at: NDArray[np.int64]) -> float:
        return scale(first, at) / scale(of, at)

    rows = []
    for name, one in found.items():
        steps_needed, error = jackknife(partial(scale, one), GROUPS)
        ratio, of_ratio = jackknife(partial(better, one), GROUPS)
        rows.append(
            {"update": update, "advantage": name, "steps": len(steps), "noise_scale": steps_needed}
            | {"noise_scale_error": error, "ratio": ratio, "ratio_error": of_ratio}
        )
    return rows


def main() -> None:
    """Train or take the run, measure at each update, print a table."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("directory", type=Path, help="data directory of the run")
    arguments.add_argument("--at", type=int, nargs="+", default=[10, 60], help="updates to measure at")
    arguments.add_argument("--updates", type=int, default=16, help="updates' worth of steps to play at each")
    given = arguments.parse_args()
    if not given.directory.exists():
        changes = [f"learner.iterations={max(given.at)}", "backend=inline", "evaluation.opponents=[]"]
        us.load(QUICKSTART, data=given.directory, overrides=changes).start(live=False)
    oldest = us.list_runs(given.directory)[-1]  # the others are its forks
    run = us.open_run(oldest.run_id, given.directory)
    rows = [row for update in given.at for row in measure(run, update, given.updates)]
    table = Table(title="Steps at which noise and signal of the gradient are equal", title_justify="left")
    for heading in ("update", "advantage", "noise scale", "ratio"):
        table.add_column(heading, justify="left" if heading == "advantage" else "right")
    for row in rows:
        scale = f"{row['noise_scale']:,.0f} ± {row['noise_scale_error']:,.0f}"
        ratio = f"{row['ratio']:.2f} ± {row['ratio_error']:.2f}"
        table.add_row(str(row["update"]), row["advantage"], scale, ratio)
    Console().print(table)
    if given.json is not None:
        content = {"machine": machine(), "results": rows}
        given.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
