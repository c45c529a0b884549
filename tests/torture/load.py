"""The explorer as a process: requests of an attacker, 200 clients at once, and Ctrl-C under load."""

import asyncio
import hashlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from image_kinds import write_images

from bitmosaic import pipeline
from bitmosaic.explorer.api import Api
from bitmosaic.explorer.server import make_app
from bitmosaic.run.folder import Run
from torture.attacks import SECRET, Attack, Target, edits_of_others, fault_of, known_attacks
from torture.crowd import UNFINISHED, crowd
from torture.tally import Tally

N_CLIENTS = 200
MOST_GROWTH = 200  # bytes per request
ROOM = 4  # MB of noise of the allocator
LONGEST_STOP = 8.0  # seconds from Ctrl-C to the end
SAME = [  # answers that do not depend on edits
    *(f"/thumb/{row}" for row in range(0, 300, 7)),
    *(f"/api/search?q={text}" for text in ("disc", "noise%2F0012", "nothing", "png")),
    *("/", "/cluster/1", "/map", "/static/main.js", "/api/cluster/1/rows?start=5&count=20", "/api/outliers"),
]
PATHS = [
    *SAME,
    *("/api/run", "/api/clusters", "/api/cluster/2", "/api/image/60", "/api/image/7/neighbors", "/large/5"),
    *("/export/clusters.csv", "/export/clusters.parquet", "/api/cluster/0/views", "/api/map", "/api/duplicates"),
]


ATTACKS = "requests that attack the explorer"
LOAD = f"requests of {N_CLIENTS} clients at once to the explorer"
INTERRUPTS = "Ctrl-C while clients use the explorer"


def tallies(effort):
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        (folder / "secret.txt").write_text(SECRET)
        images = write_images(folder / "images", 100)
        run = pipeline.cluster(images, folder / "run", 3, views=("hog", "ch"), labels="folder").folder
        yield attacked(run)
        yield crowded(run, effort)
        yield interrupted(run, effort)


# ---- attacks


def attacked(run):
    tally = Tally(ATTACKS)
    before, routes = _hashes(run), tuple(make_app(Api(Run(run))).routes)
    with exploring(run, tally) as (_, port):
        target = Target(port, _token(port), routes)
        edits = 0

        def attempt(attack):
            nonlocal edits
            tally.tried += 1
            answer = target.ask(attack.raw)
            edits += attack.raw.startswith(b"POST") and answer.startswith(b"HTTP/1.1 200")
            fault = fault_of(attack, answer)
            if fault:
                tally.crashes.append(f"{fault}: {attack.raw[:120]!r}")

        for attack in (*known_attacks(target), *edits_of_others(target)):
            attempt(attack)
        attempt(Attack(target.request("GET", "/api/run")))
        if _edits(run) != edits:
            tally.losses.append(f"{_edits(run)} edits are in the log, {edits} were confirmed")
    if {name: digest for name, digest in _hashes(run).items() if name in before} != before:
        tally.losses.append("a file of the run has changed")
    (run / "edits.jsonl").unlink(missing_ok=True)
    return tally


# ---- load


def crowded(run, effort):
    """Five loads on one server. The first warms it up; after the last two, memory is as after the two before."""
    tally = Tally(LOAD)
    with exploring(run, tally) as (process, port):
        token, target = _token(port), Target(port, "", ())
        expected = {path: _body(target, path) for path in SAME}
        edits, memory = 0, []
        for _ in range(5):
            seen = asyncio.run(crowd(port, N_CLIENTS, effort.load / 2, PATHS, expected, token))
            tally.tried, edits = tally.tried + seen.requests, edits + seen.edits
            tally.crashes += seen.bad
            memory.append(_resident(process.pid))
        if _edits(run) != edits:
            tally.losses.append(f"{_edits(run)} edits are in the log, {edits} were confirmed")
        if min(memory[3:]) > max(memory[1:3]) + ROOM + MOST_GROWTH * seen.requests / 1e6:
            tally.crashes.append(f"memory grows: {memory} MB after each load")
        if {path: _body(target, path) for path in SAME} != expected:
            tally.wrong.append("answers differ after the load")
    return tally


def interrupted(run, effort):
    """Ctrl-C during requests: the server ends soon without a traceback, and confirmed edits are in the log."""
    tally = Tally(INTERRUPTS)
    for _ in range(effort.times):
        (run / "edits.jsonl").unlink(missing_ok=True)
        with ExitStack() as stack:
            with exploring(run, tally) as (_, port):
                token = _token(port)
                for begin in UNFINISHED:
                    stack.enter_context(socket.create_connection(("127.0.0.1", port))).sendall(begin)
                background = stack.enter_context(ThreadPoolExecutor(1))
                asking = background.submit(asyncio.run, crowd(port, 20, 2, PATHS, {}, token))
                time.sleep(1)
            confirmed = asking.result().edits
        tally.tried += 1
        if _edits(run) < confirmed:
            tally.losses.append(f"{_edits(run)} edits are in the log, {confirmed} were confirmed")
    return tally


# ---- the command


@contextmanager
def exploring(run, tally, before=""):
    """`bitmosaic explore` in a process of its own, ended by Ctrl-C. A traceback on its terminal is a failure."""
    program = f"{before}\nfrom bitmosaic.cli import main; main()"
    command = [sys.executable, "-c", program, "explore", str(run), "--port", "0", "--no-browser"]
    with open(run.parent / "errors.txt", "w+b") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors)
        try:
            yield process, int(re.search(rb"http://127\.0\.0\.1:(\d+)/", process.stdout.readline())[1])
            begun = time.perf_counter()
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(LONGEST_STOP)
            if process.returncode != 0:
                tally.crashes.append(
                    f"Ctrl-C: exit code {process.returncode} after {time.perf_counter() - begun:.1f} s"
                )
        finally:
            process.kill()
            process.communicate()
        errors.seek(0)
        said = errors.read().decode(errors="replace")
        if re.search("Traceback|Error|Exception", said):
            tally.crashes.append(f"the terminal shows: {said[:2000]}")


def _token(port):
    page = Target(port, "", ()).ask(Target(port, "", ()).request("GET", "/"))
    return re.search(rb'name="token" content="([^"]+)"', page)[1].decode()


def _body(target, path):
    return target.ask(target.request("GET", path)).partition(b"\r\n\r\n")[2]


def _edits(run):
    """Number of edits in the log; its first line is a header."""
    log = run / "edits.jsonl"
    return log.read_bytes().count(b"\n") - 1 if log.exists() else 0


def _hashes(run):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in run.iterdir() if path.is_file()}


def _resident(pid):
    """Resident memory in MB; 0 if unknown."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
