"""The rating fold over columns against slow obvious loops over events."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.model_pool.outcomes import RUN, make_outcome
from unstable_stream.events import OVERALL, GameOutcome, Rating
from unstable_stream.model_pool import RatingProcessor, TrueSkill
from unstable_stream.model_pool.rating_columns import GameColumns, Names, RatingHistory
from unstable_stream.model_pool.ratings import Ratings
from unstable_stream.model_pool.skill import Belief
from unstable_stream.model_pool.systems import Elo, OpenSkill, RatingSystem

ENVS = ("Env-a", "Env-b")
UIDS = ("ckpt-000000", "ckpt-000001", "ckpt-000002", "ckpt-000005", "fixed", "other")


@st.composite
def histories(draw: st.DrawFn) -> list[GameOutcome]:
    """Games of one to four seats, mirror games and models in several seats among them."""
    orphans = draw(st.sets(st.sampled_from(UIDS)))
    parents = dict.fromkeys(orphans)
    outcomes = []
    for index in range(draw(st.integers(1, 25))):
        seats = {
            seat: (draw(st.sampled_from(UIDS)), float(draw(st.integers(-1, 1))))
            for seat in range(draw(st.sampled_from([1, 2, 2, 2, 3, 4])))
        }
        env_id = draw(st.sampled_from(ENVS))
        outcomes.append(make_outcome(index, seats, env_id=env_id, parents=parents))
    return outcomes


def columns(outcomes: Sequence[GameOutcome], names: Names) -> GameColumns:
    envs, starts, models, ranks = [], [0], [], []
    for outcome in outcomes:
        envs.append(names.env(outcome.env_id))
        for seat in outcome.seats:
            models.append(names.model(seat.model_uid, seat.policy_version, seat.parent_uid))
            ranks.append(seat.rank)
        starts.append(len(models))
    return GameColumns(envs, starts, models, ranks)


def history_of(
    outcomes: Sequence[GameOutcome], ratings: Ratings, names: Names, pieces: int
) -> dict[tuple[str, str, str], tuple[float, float, int]]:
    """Every rating given, by game, environment and model; the games come in pieces."""
    found = {}
    size = -(-len(outcomes) // pieces)
    for start in range(0, len(outcomes), size):
        piece = outcomes[start : start + size]
        history = RatingHistory()
        ratings.apply(columns(piece, names), history)
        for game, scope, model, mu, sigma, games in history.rows():
            env_id = OVERALL if scope < 0 else names.envs[int(scope)]
            found[piece[int(game)].game_id, env_id, names.models[int(model)]] = (mu, sigma, int(games))
        assert [*zip(*history.columns(), strict=True)] == history.rows()
    return found


def plainly_rated(
    system: RatingSystem, outcomes: Sequence[GameOutcome]
) -> dict[tuple[str, str, str], tuple[float, float, int]]:
    """The rules once more, by dictionaries of names."""
    skills: dict[str, dict[str, Belief]] = {ENVS[0]: {}, ENVS[1]: {}, OVERALL: {}}
    counts: dict[tuple[str, str], int] = {}
    parents: dict[str, str | None] = {}
    versions: dict[str, int] = {}

    def first(uid: str, known: dict[str, Belief]) -> Belief:
        asked, parent = {uid}, parents.get(uid)
        while parent is not None and parent not in asked:
            if parent in known:
                return system.inherited(*known[parent])
            asked.add(parent)
            parent = parents.get(parent)
        if uid in versions:
            earlier = [(v, u) for u, v in versions.items() if v < versions[uid] and u in known]
            if earlier:
                return system.inherited(*known[max(earlier)[1]])
        return system.start

    found = {}
    for outcome in outcomes:
        ranks: dict[str, list[int]] = {}
        for seat in outcome.seats:
            ranks.setdefault(seat.model_uid, []).append(seat.rank)
            if seat.policy_version is not None:
                parents.setdefault(seat.model_uid, seat.parent_uid)
                versions.setdefault(seat.model_uid, seat.policy_version)
        if len(ranks) < 2:
            continue
        means = {uid: sum(each) / len(each) for uid, each in ranks.items()}
        for scope in (outcome.env_id, OVERALL):
            before = {uid: skills[scope].get(uid) or first(uid, skills[scope]) for uid in ranks}
            after = dict(system.many(outcome.env_id, before, means))  # more than two: the package
            if len(ranks) == 2:
                one, other = sorted(means, key=lambda uid: (means[uid], uid))  # used at once
                drawn = means[one] == means[other]
                numbers = system.pair(outcome.env_id)(*before[one], *before[other], drawn)
                after = {one: numbers[:2], other: numbers[2:]}
            skills[scope].update(after)
            for uid, belief in after.items():
                counts[scope, uid] = counts.get((scope, uid), 0) + 1
                found[outcome.game_id, scope, uid] = (*belief, counts[scope, uid])
    return found


systems = st.one_of(
    st.builds(
        TrueSkill,
        beta=st.floats(1.0, 10.0),
        tau=st.floats(0.0, 1.0),
        inherited_sigma=st.floats(0.0, 5.0),
        draw_probability=st.fixed_dictionaries({ENVS[0]: st.floats(0.05, 0.6)}),
    ),
    st.sampled_from([Elo(), OpenSkill()]),
)


@settings(max_examples=200)
@given(histories(), systems, st.integers(1, 3))
def test_the_fold_gives_what_a_slow_loop_gives_to_the_last_bit(
    outcomes: list[GameOutcome], system: RatingSystem, pieces: int
) -> None:
    recorded = plainly_rated(system, outcomes)
    names = Names()
    ratings = Ratings(names, system)
    assert history_of(outcomes, ratings, names, pieces) == recorded
    assert ratings.games == len(outcomes)
    assert ratings.rated == len({game for game, _, _ in recorded})
    processor = RatingProcessor(RUN, system)
    live = [rating for outcome in outcomes for rating in processor.handle(outcome)]
    assert {
        (each.game_id, each.env_id, each.model_uid): (each.mu, each.sigma, each.games)
        for each in live
        if isinstance(each, Rating)
    } == recorded
    last = {(env, uid): value for (_, env, uid), value in recorded.items()}
    ladder = ratings.ladder()
    assert {(each.env_id, each.model_uid): (each.mu, each.sigma, each.games) for each in ladder} == last
    for env_id in {each.env_id for each in ladder}:
        standing = [each for each in ladder if each.env_id == env_id]
        assert [each.rank for each in standing] == list(range(1, len(standing) + 1))
        scores = [system.score(each.mu, each.sigma) for each in standing]
        assert scores == sorted(scores, reverse=True)


def test_only_what_is_asked_for_is_rated() -> None:
    games = [make_outcome(i, {0: ("x", 1.0), 1: ("y", -1.0)}, env_id=ENVS[i % 2]) for i in range(4)]
    for per_env, overall, scopes in (
        (True, False, set(ENVS)),
        (False, True, {OVERALL}),
        (True, True, {*ENVS, OVERALL}),
    ):
        names = Names()
        ratings = Ratings(names, TrueSkill(), per_env=per_env, overall=overall)
        ratings.apply(columns(games, names))
        assert {each.env_id for each in ratings.ladder()} == scopes
