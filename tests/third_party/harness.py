"""Cases: how they are named, run and counted.

Owns the list of cases and what they are told of the servers. Invariant: a case that raises anything is a failure with
a name, and every other case still runs. Never lets a case wait for ever: calls have time limits, and so has the run.
"""

import contextlib
import dataclasses
import faulthandler
import os
import time
import traceback
from collections.abc import Callable
from pathlib import Path

# For one call that has to succeed: many times what it takes on a busy machine.
PATIENCE_S = 20.0

# For all cases together. Whoever hangs is shown with what it was doing.
RUN_LIMIT_S = 150.0


@dataclasses.dataclass
class Setup:
    """What there is to call, and with what."""

    default: str  # host:port of a server with the default model
    null: str  # host:port of a server whose vectors are of NULL_DIMENSIONS
    program: Path  # embedding-service
    grpcurl: Path
    protos: Path  # the folder that imports start from
    descriptors: bytes  # what protoc makes of the .proto files: a FileDescriptorSet
    scratch: Path  # a folder for files of a case


NULL_DIMENSIONS = 8192
DEFAULT_DIMENSIONS = 384
MAX_BATCH = 32

_cases: list[tuple[str, Callable[[Setup], None]]] = []


def case(name: str) -> Callable[[Callable[[Setup], None]], Callable[[Setup], None]]:
    def add(function: Callable[[Setup], None]) -> Callable[[Setup], None]:
        _cases.append((name, function))
        return function

    return add


def equal(found: object, expected: object, what: str) -> None:
    if found != expected:
        raise AssertionError(f"{what}: {shortened(found)}, not {shortened(expected)}")


def holds(condition: bool, what: object) -> None:
    if not condition:
        raise AssertionError(shortened(what))


def shortened(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 400 else f"{text[:400]}… ({len(text)} characters)"


def connections(address: str) -> set[str]:
    """This process's connections to a server, by the kernel's number of their sockets."""
    port = f":{int(address.rpartition(':')[2]):04X}"
    mine = set()
    for name in os.listdir("/proc/self/fd"):
        # The descriptor that lists the folder is closed by the time that it is looked at.
        with contextlib.suppress(FileNotFoundError):
            mine.add(os.readlink(f"/proc/self/fd/{name}"))
    found = set()
    # Clients may use sockets of IPv6 for addresses of IPv4.
    for table in ["tcp", "tcp6"]:
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            _, _, remote, state, _, _, _, _, _, socket, *_ = line.split()
            if state == "01" and remote.endswith(port) and f"socket:[{socket}]" in mine:
                found.add(socket)
    return found


def run(setup: Setup) -> bool:
    """Runs every case; whether all passed."""
    faulthandler.dump_traceback_later(RUN_LIMIT_S, exit=True)
    failed = 0
    for name, function in _cases:
        start = time.monotonic()
        try:
            function(setup)
        except Exception as error:
            failed += 1
            print(f"FAIL  {name}: {shortened(str(error)) or type(error).__name__}", flush=True)
            print("".join(f"      {line}\n" for line in traceback.format_exc().splitlines()[-8:]), end="", flush=True)
        else:
            print(f"ok    {name} ({(time.monotonic() - start) * 1000:.0f} ms)", flush=True)
    faulthandler.cancel_dump_traceback_later()
    print(f"{len(_cases) - failed} passed, {failed} failed", flush=True)
    return failed == 0
