"""How often suggest-k finds the true k: blobs whose centres are 6 standard deviations apart.

Every k has the same number of seeds; the seeds go through dimensions 2, 5 and 10 and through boxes
that the centres just fit into and wide ones, so that each k meets all of them.
"""

import argparse
import time

from helpers.blobs import blobs

from gmkcf_dask import KSuggestion, suggest_k

DIMENSIONS = (2, 5, 10)
ROOMS = (1.3, 3.0)


def trial(k: int, seed: int, *, equal: bool) -> KSuggestion:
    """One data set, one suggestion."""
    d, room = DIMENSIONS[seed % 3], ROOMS[seed // 3 % 2]
    X, _ = blobs(k, seed, d=d, room=room, equal=equal)
    return suggest_k(X, random_state=seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10, help="for every k")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--least", type=int, default=2)
    parser.add_argument("--most", type=int, default=12)
    parser.add_argument("--unequal", action="store_true", help="blobs of very different sizes")
    args = parser.parse_args()
    begin, hits, sure = time.monotonic(), 0, {"clear": [], "likely": [], "unsure": []}
    seeds = range(args.first, args.first + args.seeds)
    for k in range(args.least, args.most + 1):
        trials = [trial(k, seed, equal=not args.unequal) for seed in seeds]
        right = [one.k == k for one in trials]
        for one, good in zip(trials, right, strict=True):
            sure[one.word].append(good)
        hits += sum(right)
        missed = [
            f"seed {seed}: {one.k} ({one.word}, runner-up {one.runner_up})"
            for seed, one in zip(seeds, trials, strict=True)
            if one.k != k
        ]
        print(f"k = {k:>2}: {sum(right)} of {len(right)}  {'; '.join(missed)}".rstrip(), flush=True)
    print(f"in all {hits} of {args.seeds * (args.most - args.least + 1)}")
    for word, good in sure.items():
        print(f"{word}: {sum(good)} of {len(good)} right")
    print(f"{time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
