"""Train on recorded updates again: metrics and digests of the checkpoints must come out as recorded.

An update can be repeated from a checkpoint before it that still has its optimizer state, or from the policy
that the run began with. A *stretch* begins there and ends at the next checkpoint that was saved, whose digest
is then compared too. Training is the learner's own
(:mod:`unstable_stream.services.workers.recorded_updates`), which also says when numbers must be equal bit by
bit.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from unstable_stream.algorithms.update_decisions import drawn_ids
from unstable_stream.errors import ConfigError, LearnerError, StoreError
from unstable_stream.events import Checkpoint, CollapseWarning, LearnerUpdate, Step
from unstable_stream.history.proofs.ledger import Evidence, named
from unstable_stream.history.proofs.reports import Check
from unstable_stream.log.reading import TopicReader, readable_event
from unstable_stream.log.stores.checkpoint_files import OPTIMIZER_FILE, has_file, opened_checkpoint
from unstable_stream.reward_transformations import SamplingRewardTransform, build_sampling
from unstable_stream.runs.resume import RecordedConfigs

if TYPE_CHECKING:
    from unstable_stream.algorithms.learners.standard_learner import StandardLearner
    from unstable_stream.services.workers.recorded_updates import RecordedUpdates

_DOING: Final = "training again"


@dataclass(slots=True)
class TrainingRepeated:
    """The updates that were trained again, and the result."""

    updates: Check = field(default_factory=lambda: Check("training"))
    weights: Check = field(default_factory=lambda: Check("trained weights"))
    wanted: int = 0
    exact: int = 0
    """Updates whose metrics were compared bit by bit."""
    elsewhere: str = ""
    """Reason for which the others were compared within a tolerance, in words."""
    tolerance: str = ""
    """The tolerance for that reason."""

    def summary(self) -> str:
        """Return the result as one line."""
        done, differing = self.updates.compared, self.updates.differing
        what = f"{done:,} of {self.wanted:,} updates trained again"
        if not done:
            return what
        verb = f"{differing:,} with other metrics" if differing else "metrics equal"
        parts = []
        if self.exact == done:
            parts.append(f"{verb} bit by bit")
        else:
            within = f"within {self.tolerance} ({self.elsewhere})"
            parts.append(f"{verb} {within}" + (f", {self.exact:,} bit by bit" if self.exact else ""))
        if self.weights.compared:
            equal = self.weights.compared - self.weights.differing
            parts.append(f"sha256 of {equal:,} of {self.weights.compared:,} checkpoints equal")
        return f"{what}: {'; '.join(parts)}"


class _Recorded(NamedTuple):
    where: str
    update: LearnerUpdate


def choose_stretches(
    numbers: Sequence[int], starts: Collection[int], saved: Collection[int], wanted: int | None
) -> list[list[int]]:
    """Return the updates to repeat, in order; each list begins after one of ``starts``.

    Args:
        numbers: all updates of a model, in order.
        starts: updates after which training can begin.
        saved: updates that saved a checkpoint; a stretch of a sample ends with one.
        wanted: take stretches that are spread over the run until they have so many updates; ``None``: all
            updates from the first start on, in one stretch.
    """
    first = next((place for place, number in enumerate(numbers) if number - 1 in starts), None)
    if first is None:
        return []
    if wanted is None:
        return [list(numbers[first:])]
    stretches: list[list[int]] = []
    for place, number in enumerate(numbers):
        if number - 1 not in starts:
            continue
        end = next(
            (later for later in range(place, len(numbers)) if numbers[later] in saved), len(numbers) - 1
        )
        stretches.append(list(numbers[place : end + 1]))
    for count in range(1, len(stretches) + 1):
        # From the end, so that a single one is the newest.
        last = len(stretches) - 1
        places = [last - round(each * last / max(1, count - 1)) for each in range(count)]
        chosen = [stretches[place] for place in sorted(places)]
        if sum(map(len, chosen)) >= wanted:
            return chosen
    return stretches


async def repeat_training(
    evidence: Evidence,
    checkpoints: Mapping[tuple[str, int], tuple[str, Checkpoint]],
    *,
    updates: int | None,
    located: Callable[[str], str] = str,
) -> TrainingRepeated:
    """Train on recorded updates of every model of a run again.

    Args:
        evidence: of the run.
        checkpoints: by model and iteration, each with its place in the log.
        updates: how many, spread over the run; ``None``: all.
        located: returns where the checkpoint is that an event names.

    Raises:
        ConfigError: the base model or the code of the run is not here.
        LearnerError: the learner cannot be made here.
    """
    result = TrainingRepeated()
    if evidence.trimmed[Step.TOPIC]:
        result.updates.skipped = result.weights.skipped = "steps are past the topic's retention"
        return result
    recorded: dict[str | None, dict[int, _Recorded]] = {}
    warnings: list[CollapseWarning] = []
    async for record, event in evidence.events(LearnerUpdate.TOPIC, "reading updates"):
        if isinstance(event, LearnerUpdate):
            recorded.setdefault(event.model, {}).setdefault(event.update, _Recorded(str(record), event))
        elif isinstance(event, CollapseWarning):
            warnings.append(event)
    configs = await RecordedConfigs.read(evidence.log, evidence.run.run_id)
    for model in evidence.run.config().model_names:
        of_model = _Model(
            evidence,
            configs,
            dict(sorted(recorded.get(model, {}).items())),
            {number: placed for (name, number), placed in checkpoints.items() if name == (model or "")},
            [each for each in warnings if each.model == model],
            located,
            result,
        )
        await of_model.repeat(updates)
    return result


@dataclass
class _Model:
    """The updates of one trained model."""

    evidence: Evidence
    configs: RecordedConfigs
    recorded: Mapping[int, _Recorded]
    checkpoints: Mapping[int, tuple[str, Checkpoint]]
    warnings: Sequence[CollapseWarning]
    located: Callable[[str], str]
    result: TrainingRepeated
    learner: "StandardLearner" = field(init=False)

    async def repeat(self, wanted: int | None) -> None:
        """Choose, train and compare."""
        starts = await asyncio.to_thread(self._starts)
        stretches = choose_stretches(list(self.recorded), starts, self.checkpoints, wanted)
        result = self.result
        numbers = [number for stretch in stretches for number in stretch]
        result.wanted += len(self.recorded) if wanted is None else len(numbers)
        if not numbers:
            if self.recorded:
                result.updates.skipped = "no checkpoint has its optimizer state any more"
            return
        training = await asyncio.to_thread(self._build, numbers[0])
        drawn = _batches(self.evidence, [self.recorded[number].update for number in numbers])
        async with aclosing(drawn) as batches:
            for stretch in stretches:
                goes_on = await asyncio.to_thread(self._begin, training, stretch[0])
                for number in stretch:
                    if goes_on and number != stretch[0] and number - 1 in starts and training.drifts:
                        goes_on = await asyncio.to_thread(self._begin, training, number)
                    self.evidence.progress(_DOING, result.updates.compared, result.wanted)
                    batch = await anext(batches)
                    if goes_on:
                        goes_on = await asyncio.to_thread(self._compare, training, number, batch)

    def _starts(self) -> set[int]:
        """Return the updates after which training can begin."""
        found = {0}
        for number, (_, checkpoint) in self.checkpoints.items():
            path = checkpoint.path
            try:
                if number and path is not None and has_file(self.located(path), OPTIMIZER_FILE):
                    found.add(number)
            except (ConfigError, StoreError):
                continue  # the check of the files names it
        return found

    def _build(self, first: int) -> "RecordedUpdates":
        """Make a learner with the settings of an update, on the kind of device that computed it."""
        from unstable_stream.services.workers.recorded_updates import (  # loads torch
            RecordedUpdates,
            learner_to_repeat,
        )

        update = self.recorded[first].update
        config = self.configs.of(update)
        assert config is not None, "a run with evidence is recorded"
        self.learner = learner_to_repeat(config, update)
        return RecordedUpdates(self.learner, config, self.configs, self._transform())

    def _transform(self) -> SamplingRewardTransform:
        return build_sampling(list(self.evidence.run.config().rewards.sampling))

    def _begin(self, training: "RecordedUpdates", first: int) -> bool:
        """Go back to where a stretch begins; return whether that is possible."""
        update = self.recorded[first].update
        if first == 1:
            training.begin(update, self._transform(), None, None)
            return True
        where, checkpoint = self.checkpoints[first - 1]
        assert checkpoint.path is not None, "it is one to start from"
        try:
            with opened_checkpoint(
                self.located(checkpoint.path), checkpoint.sha256, to_train=True
            ) as directory:
                training.begin(update, self._transform(), checkpoint, directory)
        except LearnerError as error:
            self.result.updates.compared += 1
            what = f"update {first} cannot be trained again: {error}"
            self.result.updates.differs(where, checkpoint.event_id, what)
            return False
        return True

    def _compare(self, training: "RecordedUpdates", number: int, batch: Sequence[Step]) -> bool:
        """Train on an update again; return whether the next one can follow."""
        where, update = self.recorded[number]
        check = self.result.updates
        what = f"update {named((update.model or '', number))}"
        if len(batch) < len(drawn_ids(update)):
            check.gone += 1
            return False
        check.compared += 1
        lowered = [each.learning_rate_factor for each in self.warnings if each.update < number]
        try:
            repeated = training.repeat(update, batch, lowered[-1] if lowered else 1.0)
        except LearnerError as error:
            check.differs(where, update.event_id, f"{what} cannot be trained again: {error}")
            return False
        self.result.exact += not repeated.elsewhere
        if repeated.tolerance:
            self.result.elsewhere, self.result.tolerance = repeated.elsewhere, str(repeated.tolerance)
        if repeated.differing:
            check.differs(where, update.event_id, repeated.problem(update))
            return False
        return repeated.elsewhere != "" or number not in self.checkpoints or self._same_weights(number)

    def _same_weights(self, number: int) -> bool:
        where, checkpoint = self.checkpoints[number]
        if checkpoint.sha256 is None:
            return True
        weights = self.result.weights
        weights.compared += 1
        found = self.learner.weights_sha256()
        if found != checkpoint.sha256:
            what = f"{checkpoint.model_uid}, trained again, has other weights"
            weights.differs(where, checkpoint.event_id, what, "$.sha256", checkpoint.sha256, found)
        return found == checkpoint.sha256


async def _batches(evidence: Evidence, updates: Sequence[LearnerUpdate]) -> AsyncGenerator[list[Step], None]:
    """Yield the steps that each update drew, in its order, without those that are gone.

    They are read once and in the order of the updates; those that no update has drawn yet are held.
    """
    needed = {step_id for update in updates for step_id in drawn_ids(update)}
    read: dict[str, Step] = {}
    ends = evidence.ends[Step.TOPIC]
    opened = await TopicReader.open(evidence.log, (Step.TOPIC,), run_id=evidence.run.run_id, ends=ends)
    async with opened as reader:
        for update in updates:
            positions = update.positions
            read_to = {at: positions[str(at)] for at in ends if str(at) in positions}
            async for record in reader.read_to(read_to):
                step = readable_event(record)
                if isinstance(step, Step) and step.event_id in needed:
                    needed.discard(step.event_id)
                    read[step.event_id] = step
            yield [read.pop(name) for name in drawn_ids(update) if name in read]
