"""PPO: an actor-critic that makes several passes over each batch, with the clipped objective.

Schulman et al., "Proximal Policy Optimization Algorithms", arXiv:1707.06347, equation 7, per token, with the
critic and the generalised advantage estimate of :mod:`unstable_stream.algorithms.a2c`. For ``n`` samples in
an optimizer step, with completion ``y`` of sample ``i``, advantage ``A`` and limit ``L``::

    loss = -1/n sum_i 1/L sum_t [ min(r_it * A_i, clip(r_it, 1 - clip_low, 1 + clip_high) * A_i) + c * H_it ]
    r_it = pi(y_it) / mu(y_it)

All tokens of a turn have its advantage: the critic values positions, not tokens. ``mu`` is the probability
that the engine recorded when it sampled. So the trust region lies around the policy that played the turn, and
staleness counts against it as much as the passes of the update do. The advantages are estimated once, before
the first pass; the critic's own error is not clipped.

It is :class:`~unstable_stream.algorithms.A2C` with other defaults: where the clipped objective has a gradient
at all, it is ``r * A * grad log pi``. ``is_clip`` truncates this weight ``r`` for tokens with a negative
advantage, where the clipped objective leaves it unbounded. ("Dual clip", Ye et al., arXiv:1912.09729, takes
the gradient of such tokens away altogether; here they keep a bounded one.) The same settings make
:class:`~unstable_stream.algorithms.Reinforce` PPO's objective without a critic.
"""

from unstable_stream.algorithms.a2c import A2C
from unstable_stream.algorithms.settings import PPOConfig


class PPO(A2C):
    """Actor-critic with the clipped objective, several passes over each batch.

    Its settings are the keys of ``[algorithm]`` with ``type = "ppo"`` in docs/reference/configuration.md.
    """

    settings_type = PPOConfig
