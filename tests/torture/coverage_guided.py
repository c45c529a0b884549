"""As fuzzing.py, with atheris to choose the inputs: ``python -m torture.coverage_guided FOLDER SECONDS SEED READER…``

atheris keeps what reaches new lines of bitmosaic, and of the readers in Python below it, and changes that further: half
of the time by the mutants of formats, which know where the checksums are. It ends its process when its time is over, so
each reader has a fork.
"""

import importlib.util
import os
import sys
from pathlib import Path

import atheris
import numpy as np

# What Numba compiles must be as it is written.
PACKAGE = Path(importlib.util.find_spec("bitmosaic").origin).parent
KERNELS = [".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in PACKAGE.rglob("*kernels.py")]

with atheris.instrument_imports(
    include=["bitmosaic", "zipfile", "tarfile", "pickletools", "numpy.lib._format_impl", "PIL"],
    exclude=[*KERNELS, "bitmosaic.features"],
    enable_loader_override=False,
):
    from torture.fuzzing import SECONDS_EACH, Fuzzing, last_input, limit_memory, note, tell_where
    from torture.mutants import mutant
    from torture.victims import HERE, Victims


def main(folder, seconds, seed, *readers):
    folder = Path(folder)
    for reader in readers:
        victims = Victims(folder / "victims")
        if not (pid := os.fork()):
            fuzz(folder, reader, seconds, seed, victims)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code < 0:
            os.kill(os.getpid(), -code)
        if code:
            sys.exit(code)
        for kind, problem in victims.harm().items():  # since it looked last
            note(folder / "work", reader, find=f"one of the last inputs: {problem}", kind=kind)
        note(folder / "work", reader, tried=last_input(folder / "work" / "last")[2])


def fuzz(folder, reader, seconds, seed, victims):
    """Try inputs of this reader until the time is over, or the few without one are made, and with it the process."""
    tell_where()
    fuzzing = Fuzzing(folder, reader, victims, float(seconds))
    corpus = folder / "corpus" / reader
    corpus.mkdir(parents=True, exist_ok=True)
    for number, target in enumerate(fuzzing.targets):
        for i, content in enumerate(target.contents):
            (corpus / f"{number}-{i}").write_bytes(bytes([number]) + content)

    def attempt(data: bytes) -> None:
        if data:
            fuzzing.attempt(data[0] % len(fuzzing.targets), data[1:])

    def change(data: bytes, max_size: int, seed: int) -> bytes:
        rng = np.random.default_rng(seed)
        target = fuzzing.targets[data[0] % len(fuzzing.targets)]
        if rng.random() < 0.5:
            return data[:1] + mutant(rng, target.name, [data[1:]])[: max_size - 1]
        return data[:1] + atheris.Mutate(data[1:], max_size - 1)

    os.chdir(folder / "victims" / HERE)
    limit_memory()
    end = f"-max_total_time={max(1, int(float(seconds)))}" if fuzzing.timed else f"-runs={fuzzing.few}"
    options = [end, f"-timeout={SECONDS_EACH}", f"-seed={int(seed) + 1}"]
    options += ["-rss_limit_mb=0", "-max_len=100000", "-print_final_stats=0", "-verbosity=0"]
    options += [f"-artifact_prefix={folder}/", str(corpus)]  # hostile.py keeps what it finds
    atheris.Setup([sys.argv[0], *options], attempt, custom_mutator=change)
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
