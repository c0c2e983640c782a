"""pFedOCF: how long coalitions of linear clients take to form, whether they are stable, and what a measured game sends.

python benchmarks/pfedocf.py [--games 20]
"""

import argparse
import time

import numpy as np

from coterie.games.overlap import LinearGame, form, is_individually_stable
from coterie.strategies.pfedocf.game import Nearest, play
from coterie.tasks.linear import LinearRecipe, linear_parameters


def linear_game(clients: int, seed: int) -> LinearGame:
    """Groups of twenty (of five in small games), 12 to 40 samples, 5 features, as in the presets."""
    rng = np.random.default_rng(seed)
    recipe = LinearRecipe(clients, 5, max(2, clients // 20), float(rng.choice([0.05, 0.1, 0.3])), seed=seed)
    return LinearGame(linear_parameters(recipe), rng.integers(12, 41, size=clients), 1.0)


def speed(games: int) -> None:
    seconds, sweeps, stable = [], [], 0
    for seed in range(games):
        game = linear_game(100, seed)
        started = time.process_time()
        found = form(game)
        seconds.append(time.process_time() - started)
        sweeps.append(found.sweeps)
        stable += is_individually_stable(game, found.coalitions)
    print(f"100 linear clients, {games} games: {np.mean(seconds):.2f} CPU s each, {max(seconds):.2f} at most;")
    print(f"  {stable} of {games} stable; {min(sweeps)} to {max(sweeps)} sweeps")


def messages(games: int) -> None:
    print("measured game, means: clients, candidates: models sent to all, of that per client, exchanges, all pairs")
    for clients in (5, 10, 20, 50):
        for candidates in (0, 10):
            sent, exchanges = [], []
            for seed in range(games):
                game = linear_game(clients, seed)
                nearest = Nearest(game.thetas, game.samples, candidates or clients)
                answers = play(
                    range(clients),
                    lambda wanted, game=game: (
                        {i: np.array([[game.error(i, c)] * 2 for c in cs]) for i, cs in wanted.items()},
                        {},
                    ),
                    np.zeros(clients),
                    nearest,
                )
                sent.append(sum(answers.asked.values()))
                exchanges.append(answers.exchanges)
            pairs = clients * (clients - 1)
            mean = np.mean(sent)
            print(
                f"  {clients:3} {candidates or 'all':>4}: {mean:7.0f} {mean / clients:6.1f} {np.mean(exchanges):6.1f} {pairs}"
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--games", type=int, default=20)
    arguments = parser.parse_args()
    speed(arguments.games)
    messages(max(1, arguments.games // 2))
