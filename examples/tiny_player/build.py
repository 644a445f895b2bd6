"""Build the tiny player: a 0.34 M parameter model that plays SimpleTak and TicTacToe legally but badly.

Warm-up by supervision on uniform-random legal games, so that reinforcement learning can start from legal
moves. The shipped model is the result of the default settings::

    python examples/tiny_player/build.py --out /tmp/tiny-player
"""

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import textarena as ta
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch.nn import functional
from transformers import Qwen3Config, Qwen3ForCausalLM

from unstable_stream.games.board_templates import BOARD_TEMPLATES
from unstable_stream.games.templates import extract_cell

END = "<end>"
PAD = "<pad>"
UNKNOWN = "<unk>"
WORDS = [
    PAD,
    END,
    UNKNOWN,
    "SimpleTak",
    "TicTacToe",
    "move:",
    "O",
    "X",
    *(str(cell) for cell in range(16)),
    *(f"[{cell}]" for cell in range(16)),
]
"""40 words; the position is the token id."""

GAMES = {"SimpleTak-v0-train": "simpletak-board", "TicTacToe-v0-train": "tictactoe-board"}
IGNORED = -100
"""Label of a token that is not learned (cross_entropy's default)."""


@dataclass(frozen=True)
class Turn:
    """One turn as it is shown to the model."""

    prompt: list[int]
    completion: list[int]


def build_tokenizer() -> Tokenizer:
    """Return the tokenizer: words apart by white space, nothing added."""
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    # Words that belong to no subword scheme are joined by one space.
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    tokenizer.add_special_tokens([PAD, END, UNKNOWN])
    return tokenizer


def model_config() -> Qwen3Config:
    """Return the architecture: ordinary Qwen3, head size 32 (the least that vLLM's CPU attention takes)."""
    return Qwen3Config(
        vocab_size=len(WORDS),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=WORDS.index(END),
        pad_token_id=WORDS.index(PAD),
        architectures=["Qwen3ForCausalLM"],
        # The weights are stored in half the bytes but computed with in full: float32 is the fastest on CPU.
        dtype="float32",
    )


def new_game(env_id: str, seed: int) -> ta.Env:
    """Return a game in which the first invalid move loses."""
    env = ta.make(env_id)
    env.reset(num_players=2, seed=seed)
    env.state.error_allowance = 0
    return env


def legal_cells(env: ta.Env) -> list[int]:
    """Return the numbers of the free cells."""
    board = env.state.game_state["board"]
    return [i for i, symbol in enumerate(symbol for row in board for symbol in row) if symbol == ""]


def random_turns(env_id: str, games: int, tokenizer: Tokenizer, rng: random.Random) -> list[Turn]:
    """Play uniform-random legal games and return all turns of both players."""
    to_prompt = BOARD_TEMPLATES[GAMES[env_id]]
    turns = []
    for _ in range(games):
        env = new_game(env_id, seed=rng.randrange(2**31))
        done = False
        while not done:
            _, observation = env.get_observation()
            action = f"[{rng.choice(legal_cells(env))}]"
            turns.append(
                Turn(
                    prompt=tokenizer.encode(to_prompt(observation)).ids,
                    completion=tokenizer.encode(f"{action} {END}").ids,
                )
            )
            done, _ = env.step(action)
    return turns


def batch_loss(model: Qwen3ForCausalLM, turns: Sequence[Turn]) -> torch.Tensor:
    """Return the mean cross-entropy of the completion tokens, in nats."""
    length = max(len(turn.prompt) + len(turn.completion) for turn in turns)
    ids = torch.full((len(turns), length), WORDS.index(PAD))
    labels = torch.full((len(turns), length), IGNORED)
    for row, turn in enumerate(turns):
        end = len(turn.prompt) + len(turn.completion)
        ids[row, :end] = torch.tensor(turn.prompt + turn.completion)
        labels[row, len(turn.prompt) : end] = torch.tensor(turn.completion)
    # Padding is on the right: a causal model never looks at it from a token that counts.
    logits = model(input_ids=ids, use_cache=False).logits
    return functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED
    )


def warm_up(model: Qwen3ForCausalLM, turns: Sequence[Turn], steps: int, seed: int) -> None:
    """Train on random batches of 128 turns: AdamW, 2e-3 after a short rise, falling linearly to zero."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.01)
    rise = max(1, steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / rise, (steps - step) / max(1, steps - rise))
    )
    rng = random.Random(seed)
    for step in range(steps):
        loss = batch_loss(model, rng.choices(turns, k=128))
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step:4d}  loss {loss.item():.3f}", flush=True)


@dataclass(frozen=True)
class Score:
    """Results of the model, at temperature 1, against uniform-random legal play."""

    wins: float
    draws: float
    invalid_per_turn: float


@torch.no_grad()
def sample_completions(
    model: Qwen3ForCausalLM, prompts: Sequence[Sequence[int]], generator: torch.Generator
) -> list[list[int]]:
    """Sample two tokens, at temperature 1, after each of the prompts (all of one length)."""
    ids = torch.tensor(prompts)
    for _ in range(2):
        logits = model(input_ids=ids, use_cache=False).logits[:, -1]
        ids = torch.cat([ids, torch.multinomial(logits.softmax(-1), 1, generator=generator)], dim=1)
    completions: list[list[int]] = ids[:, -2:].tolist()
    return completions


def evaluate(model: Qwen3ForCausalLM, tokenizer: Tokenizer, env_id: str, games: int, seed: int) -> Score:
    """Play all games at once, the model in seat 0 of the even ones."""
    to_prompt = BOARD_TEMPLATES[GAMES[env_id]]
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    envs = [new_game(env_id, seed=rng.randrange(2**31)) for _ in range(games)]
    results: dict[int, float] = {}
    turns = invalid = 0
    while len(results) < games:
        waiting, prompts = [], []
        for index, env in enumerate(envs):
            if index in results:
                continue
            seat, observation = env.get_observation()
            if seat == index % 2:
                waiting.append(index)
                prompts.append(tokenizer.encode(to_prompt(observation)).ids)
                continue
            done, _ = env.step(f"[{rng.choice(legal_cells(env))}]")
            if done:
                results[index] = env.close()[0][index % 2]
        if not waiting:
            continue
        for index, completion in zip(waiting, sample_completions(model, prompts, generator), strict=True):
            action, _ = extract_cell(tokenizer.decode(completion))
            done, _ = envs[index].step(action)
            turns += 1
            if done:
                rewards, info = envs[index].close()
                results[index] = rewards[index % 2]
                invalid += info[index % 2]["invalid_move"]
    outcomes = list(results.values())
    return Score(
        wins=outcomes.count(1) / games, draws=outcomes.count(0) / games, invalid_per_turn=invalid / turns
    )


def save(model: Qwen3ForCausalLM, tokenizer: Tokenizer, out: Path) -> None:
    """Write an ordinary Hugging Face directory, the weights as float16."""
    out.mkdir(parents=True, exist_ok=True)
    model.config.to_json_file(out / "config.json", use_diff=True)
    (out / "generation_config.json").write_text(
        json.dumps(
            {"do_sample": True, "eos_token_id": WORDS.index(END), "pad_token_id": WORDS.index(PAD)}, indent=2
        )
        + "\n"
    )
    save_file(
        {name: weight.half().contiguous() for name, weight in model.state_dict().items()},
        out / "model.safetensors",
        metadata={"format": "pt"},
    )
    (out / "model.safetensors").chmod(0o644)  # safetensors makes it private; a package's files are not
    tokenizer.save(str(out / "tokenizer.json"))
    (out / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "eos_token": END,
                "pad_token": PAD,
                "unk_token": UNKNOWN,
                "model_max_length": model.config.max_position_embeddings,
                "clean_up_tokenization_spaces": False,
            },
            indent=2,
        )
        + "\n"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Play, train, save, evaluate."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="directory to write the model to")
    parser.add_argument(
        "--steps", type=int, default=1000, help="supervised steps of 128 turns (default 1000)"
    )
    parser.add_argument("--games", type=int, default=2000, help="random games of each kind (default 2000)")
    parser.add_argument(
        "--eval-games", type=int, default=1000, help="evaluation games of each kind (default 1000)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default 1)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    rng = random.Random(options.seed)

    tokenizer = build_tokenizer()
    turns = [turn for env_id in GAMES for turn in random_turns(env_id, options.games, tokenizer, rng)]
    print(f"{len(turns)} turns of uniform-random legal play", flush=True)
    model = Qwen3ForCausalLM(model_config())
    print(f"{sum(weight.numel() for weight in model.parameters()):,} parameters", flush=True)
    warm_up(model, turns, options.steps, options.seed)
    save(model, tokenizer, options.out)
    # What is measured is what was written: weights rounded to float16.
    shipped = Qwen3ForCausalLM.from_pretrained(options.out)
    for env_id in GAMES:
        score = evaluate(shipped, tokenizer, env_id, options.eval_games, options.seed)
        print(
            f"{env_id}: {score.wins:.3f} won, {score.draws:.3f} drawn of {options.eval_games} games against "
            f"uniform-random legal play; {score.invalid_per_turn:.1%} of turns invalid",
            flush=True,
        )
    print(f"saved to {options.out}")


if __name__ == "__main__":
    main()
