"""Rating columns of games: the rating processor's ratings exactly, and another system's by a slow loop."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.model_pool.outcomes import RUN, make_outcome
from unstable_stream.events import OVERALL, GameOutcome, Rating
from unstable_stream.model_pool import RatingProcessor, TrueSkillSettings
from unstable_stream.model_pool.rating_columns import GameColumns, Names, RatingHistory
from unstable_stream.model_pool.rerating import Rerating
from unstable_stream.model_pool.systems import Elo, TrueSkill

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
    outcomes: Sequence[GameOutcome], rerating: Rerating, names: Names, pieces: int
) -> dict[tuple[str, str, str], tuple[float, float, int]]:
    """Every rating given, by game, environment and model; the games come in pieces."""
    found = {}
    size = -(-len(outcomes) // pieces)
    for start in range(0, len(outcomes), size):
        piece = outcomes[start : start + size]
        history = RatingHistory()
        rerating.apply(columns(piece, names), history)
        for game, scope, model, mu, sigma, games in zip(
            history.game.tolist(),
            history.scope.tolist(),
            history.model.tolist(),
            history.mu.tolist(),
            history.sigma.tolist(),
            history.games.tolist(),
            strict=True,
        ):
            env_id = OVERALL if scope < 0 else names.envs[scope]
            found[piece[game].game_id, env_id, names.models[model]] = (mu, sigma, games)
    return found


@settings(max_examples=200)
@given(
    histories(),
    st.floats(1.0, 10.0),
    st.floats(0.0, 1.0),
    st.floats(0.0, 5.0),
    st.floats(0.05, 0.6),
    st.integers(1, 3),
)
def test_trueskill_gives_what_the_processor_gives_to_the_last_bit(
    outcomes: list[GameOutcome], beta: float, tau: float, inherited: float, p: float, pieces: int
) -> None:
    parameters = TrueSkillSettings(
        beta=beta, tau=tau, inherited_sigma=inherited, draw_probability={ENVS[0]: p}
    )
    processor = RatingProcessor(RUN, parameters)
    recorded = {}
    for outcome in outcomes:
        for rating in processor.handle(outcome):
            assert isinstance(rating, Rating)
            recorded[rating.game_id, rating.env_id, rating.model_uid] = (
                rating.mu,
                rating.sigma,
                rating.games,
            )
    names = Names()
    rerating = Rerating(names, TrueSkill(parameters))
    assert history_of(outcomes, rerating, names, pieces) == recorded
    assert rerating.games == len(outcomes)
    assert rerating.rated == len({game for game, _, _ in recorded})
    last = {(env, uid): value for (_, env, uid), value in recorded.items()}
    ladder = rerating.ladder()
    assert {(each.env_id, each.model_uid): (each.mu, each.sigma, each.games) for each in ladder} == last
    for env_id in {each.env_id for each in ladder}:
        standing = [each for each in ladder if each.env_id == env_id]
        assert [each.rank for each in standing] == list(range(1, len(standing) + 1))
        scores = [each.mu - 3 * each.sigma for each in standing]
        assert scores == sorted(scores, reverse=True)


@given(histories())
def test_elo_gives_what_a_slow_loop_gives(outcomes: list[GameOutcome]) -> None:
    outcomes = [outcome for outcome in outcomes if len(outcome.seats) == 2]
    fixed = [outcome for outcome in outcomes if not any(s.policy_version is not None for s in outcome.seats)]
    ratings: dict[str, float] = {}
    for outcome in fixed:
        one, two = outcome.seats
        if one.model_uid == two.model_uid:
            continue
        mine, theirs = (ratings.get(seat.model_uid, 1500.0) for seat in (one, two))
        expected = 1 / (1 + 10 ** ((theirs - mine) / 400))
        result = 1.0 if one.rank < two.rank else 0.0 if two.rank < one.rank else 0.5
        ratings[one.model_uid] = mine + 32 * (result - expected)
        ratings[two.model_uid] = theirs - 32 * (result - expected)
    names = Names()
    rerating = Rerating(names, Elo(), per_env=False)
    rerating.apply(columns(fixed, names))
    found = {each.model_uid: each.mu for each in rerating.ladder()}
    assert found.keys() == ratings.keys()
    for uid, rating in ratings.items():
        assert abs(found[uid] - rating) < 1e-9


def test_a_new_checkpoint_takes_its_parents_elo() -> None:
    games = [
        make_outcome(0, {0: ("ckpt-000000", 1.0), 1: ("fixed", -1.0)}),
        make_outcome(1, {0: ("ckpt-000001", 0.0), 1: ("ckpt-000000", 0.0)}),
    ]
    names = Names()
    rerating = Rerating(names, Elo())
    rerating.apply(columns(games, names))
    overall = {each.model_uid: each.mu for each in rerating.ladder() if each.env_id == OVERALL}
    assert overall == {"ckpt-000000": 1516.0, "ckpt-000001": 1516.0, "fixed": 1484.0}


def test_only_what_is_asked_for_is_rated() -> None:
    games = [make_outcome(i, {0: ("x", 1.0), 1: ("y", -1.0)}, env_id=ENVS[i % 2]) for i in range(4)]
    for per_env, overall, scopes in (
        (True, False, set(ENVS)),
        (False, True, {OVERALL}),
        (True, True, {*ENVS, OVERALL}),
    ):
        names = Names()
        rerating = Rerating(names, TrueSkill(), per_env=per_env, overall=overall)
        rerating.apply(columns(games, names))
        assert {each.env_id for each in rerating.ladder()} == scopes
