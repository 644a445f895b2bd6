"""Count finished games into the metrics of a learner update."""

from collections import Counter

from unstable_stream.events import GameOutcome, SeatResult, are_partners, trained_model


class GameTally:
    """The games that ended since the last update: answers, mirror self-play, fixed opponents.

    Counted are the seats of the policy: those that are trained, and the one under evaluation. Older
    checkpoints as opponents are not counted, and games against them say nothing of a fixed opponent.
    ``model`` is the name of one of several trained models: the others are opponents like older checkpoints,
    unless they win and lose with it.
    """

    def __init__(self, model: str | None = None) -> None:
        self._model = model
        self._begin()

    def _begin(self) -> None:
        self._games = self._invalid = 0
        self._turns = self._legal = 0
        self._judged = self._parsed = 0
        self._mirror_games = 0
        self._mirror_reward = 0.0
        self._fixed: Counter[tuple[str, str]] = Counter()
        self._won: Counter[tuple[str, str]] = Counter()
        self._lost: Counter[tuple[str, str]] = Counter()

    def add(self, game: GameOutcome) -> None:
        """Count one game of the run, train or eval."""
        own = [
            seat
            for seat in game.seats
            if (seat.trained or seat.model_uid == game.evaluated_uid)
            and trained_model(seat.model_uid) == self._model
        ]
        others = [seat for seat in game.seats if not any(are_partners(seat, mine) for mine in own)]
        self._games += bool(own)
        self._invalid += any(seat.seat == game.invalid_seat for seat in own)
        for seat in own:
            self._turns += seat.turns
            self._legal += seat.turns - seat.invalid_moves
            if seat.seat in game.unparsed:
                self._judged += seat.turns
                self._parsed += seat.turns - game.unparsed[seat.seat]
        if len(own) == len(game.seats) > 1:
            self._mirror_games += 1
            self._mirror_reward += sum(seat.reward for seat in own) / len(own)
        elif own and others and all(seat.kind != "checkpoint" for seat in others):
            self._add_fixed(game.env_id, own, others)

    def _add_fixed(self, env_id: str, own: list[SeatResult], others: list[SeatResult]) -> None:
        key = (env_id, "+".join(sorted({seat.model_uid for seat in others})))
        best, best_other = max(seat.reward for seat in own), max(seat.reward for seat in others)
        self._fixed[key] += 1
        self._won[key] += best > best_other
        self._lost[key] += best < best_other

    def take(self) -> dict[str, float]:
        """Return the metrics of the games counted, and begin anew; what was not counted has no metric."""
        metrics: dict[str, float] = {}
        if self._games:
            metrics["finished_games"] = float(self._games)
            metrics["invalid_game_fraction"] = self._invalid / self._games
        if self._turns:
            metrics["game_turns"] = float(self._turns)
            metrics["legal_fraction"] = self._legal / self._turns
        if self._judged:
            metrics["parsed_fraction"] = self._parsed / self._judged
        if self._mirror_games:
            metrics["mirror_games"] = float(self._mirror_games)
            metrics["mirror_reward"] = self._mirror_reward / self._mirror_games
        if games := self._fixed.total():
            metrics["fixed_games"] = float(games)
            metrics["fixed_win_rate"] = self._won.total() / games
            metrics["fixed_loss_rate"] = self._lost.total() / games
        for (env_id, opponent), count in sorted(self._fixed.items()):
            metrics[f"fixed_games/{env_id}/{opponent}"] = float(count)
            metrics[f"fixed_wins/{env_id}/{opponent}"] = float(self._won[env_id, opponent])
        self._begin()
        return metrics
